"""Cases of the kernels that lay arrays out."""

from collections.abc import Iterator

from tests.kernel_cases import Case, Draw


def case_rearrange(draw: Draw) -> Iterator[Case]:
    for x, apart, dims, shape in [
        ((5,), (5,), (0,), (5,)),
        ((3, 4), (3, 4), (1, 0), (4, 3)),
        ((2, 3, 12), (2, 3, 4, 3), (0, 2, 1, 3), (2, 4, 3, 3)),
        ((2, 4, 3, 5), (2, 4, 3, 5), (0, 2, 1, 3), (2, 3, 20)),
        ((2, 3, 4, 5), (2, 3, 4, 5), (3, 1, 0, 2), (5, 3, 2, 4)),
        ((6, 10), (2, 3, 5, 2), (3, 1, 2, 0), (2, 3, 10)),
        ((1, 4, 1), (1, 4, 1), (2, 0, 1), (1, 1, 4)),
        ((70, 3, 65), (70, 3, 65), (2, 1, 0), (65, 3, 70)),
        ((2, 33, 3, 40), (2, 33, 3, 40), (0, 3, 2, 1), (2, 40, 99)),
        ((3, 129, 64), (3, 129, 2, 32), (0, 2, 1, 3), (3, 2, 129, 32)),
    ]:
        yield (draw(*x),), {"apart": apart, "dims": dims, "shape": shape}


def case_concat(draw: Draw) -> Iterator[Case]:
    for before, lengths, behind in [
        ((), (3, 1), ()),
        ((), (4,), (3,)),
        ((3,), (2, 5, 1), ()),
        ((2,), (3, 4), (5, 2)),
        ((17, 2), (65, 64), ()),
    ]:
        yield tuple(draw(*before, n, *behind) for n in lengths), {"dim": len(before)}


def case_cut(draw: Draw) -> Iterator[Case]:
    for shape, dim, start, stop in [
        ((5,), 0, 0, 5),
        ((5,), 0, 2, 3),
        ((3, 7), 1, 1, 6),
        ((4, 3, 5), 1, 0, 2),
        ((6, 3, 5), 0, 5, 6),
        ((17, 129), 1, 64, 129),
    ]:
        yield (draw(*shape),), {"dim": dim, "start": start, "stop": stop}

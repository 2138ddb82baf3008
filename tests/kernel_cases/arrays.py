"""Cases of the kernels of arrays: sums of products, sums, shapes and copies."""

from collections.abc import Iterator

from tests.kernel_cases import SHAPES, Case, Draw


def case_contract(draw: Draw) -> Iterator[Case]:
    for spec, a, b in [
        ("...i,oi->...o", (2, 3, 5), (7, 5)),
        ("...i,oi->...o", (1, 1), (1, 1)),
        ("...o,oi->...i", (63, 65), (65, 66)),
        ("...o,...i->oi", (4, 3, 5), (4, 3, 6)),
        ("bshd,bthd->bhst", (2, 5, 3, 4), (2, 6, 3, 4)),
        ("bhst,bthd->bshd", (2, 3, 5, 6), (2, 6, 3, 4)),
        ("bhst,bshd->bthd", (2, 3, 5, 6), (2, 5, 3, 4)),
        ("ib,jb->ijb", (4, 3), (5, 3)),
        ("ij,j->i", (4, 3), (3,)),
        ("i,j->ji", (4,), (3,)),
        ("i,i->", (63,), (63,)),
        ("ij,jk->k", (4, 3), (3, 2)),
        ("abc,cbd->da", (2, 3, 4), (4, 3, 5)),
        ("...,...->...", (3, 4), (3, 4)),
        ("ii,ij->j", (3, 3), (3, 2)),
    ]:
        yield (spec, draw(*a), draw(*b)), {}
    yield ("abc->ca", draw(3, 4, 5)), {}
    yield ("ab,bc,cd->ad", draw(3, 4), draw(4, 5), draw(5, 2)), {}


def case_add(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        yield (draw(*shape), draw(*shape)), {}
    yield (draw(2, 3, 4), draw(3, 1)), {}
    yield (draw(2, 3, 4), draw()), {}


def case_add_bias(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        for dim in range(-1, len(shape)):
            yield (draw(*shape), draw(shape[dim])), {"dim": dim}


def case_reshape(draw: Draw) -> Iterator[Case]:
    for a, b in [((2, 3, 4), (2, 12)), ((6, 4), (2, 3, 2, 2)), ((1, 5), (5,)), ((2, 3), (3, 2)), ((40, 60), (20, 120))]:
        yield (draw(*a),), {"shape": b}


def case_copy(draw: Draw) -> Iterator[Case]:
    for shape in [*SHAPES, ()]:
        yield (draw(*shape),), {}


def case_zero(draw: Draw) -> Iterator[Case]:
    for shape in [*SHAPES, ()]:
        yield (), {"shape": shape, "dtype": draw.dtype}

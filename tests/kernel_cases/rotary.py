"""Cases of the kernel of rotary position embeddings."""

from collections.abc import Iterator

from tests.kernel_cases import Case, Draw


def case_rotary(draw: Draw) -> Iterator[Case]:
    for shape, heads, offset in [
        ((1, 2), 1, 0),
        ((2, 5, 12), 3, 0),
        ((2, 5, 12), 3, 7),
        ((7, 8), 2, 1000),
        ((2, 3, 4, 6), 1, 3),
        ((3, 130, 64), 2, 5),
    ]:
        for interleaved in (False, True):
            params = {"heads": heads, "offset": offset, "interleaved": interleaved, "inverse": interleaved}
            yield (draw(*shape),), {"base": 1e4, **params}
            yield (draw(*shape),), {"base": 1e2, **params, "inverse": not interleaved}

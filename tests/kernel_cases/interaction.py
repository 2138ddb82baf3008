"""Cases of the kernels of products of pairs."""

from collections.abc import Iterator

from castile.kernels import reference
from tests.kernel_cases import Case, Draw


def case_pair_dots(draw: Draw) -> Iterator[Case]:
    for shape in [(1, 2, 1), (3, 5, 7), (2, 3, 33), (40, 4, 16)]:
        yield (draw(*shape),), {}


def case_pair_dots_grad(draw: Draw) -> Iterator[Case]:
    for (x,), _ in case_pair_dots(draw):
        yield (draw(*reference.pair_dots(x).shape), x), {}

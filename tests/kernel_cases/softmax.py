"""Cases of the kernels of the softmax."""

from collections.abc import Iterator

from castile.kernels import reference
from tests.kernel_cases import SHAPES, Case, Draw


def case_softmax(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        yield (3 * draw(*shape),), {}


def case_softmax_grad(draw: Draw) -> Iterator[Case]:
    for (x,), _ in case_softmax(draw):
        yield (draw(*x.shape), reference.softmax(x)), {}


def case_log_softmax(draw: Draw) -> Iterator[Case]:
    yield from case_softmax(draw)


def case_log_softmax_grad(draw: Draw) -> Iterator[Case]:
    for (x,), _ in case_softmax(draw):
        yield (draw(*x.shape), reference.log_softmax(x)), {}

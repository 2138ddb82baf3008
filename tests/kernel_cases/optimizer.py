"""Cases of the kernels of optimizers."""

from collections.abc import Iterator

from tests.kernel_cases import SHAPES, Case, Draw


def case_sgd(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        for momentum, nesterov in [(0.0, False), (0.9, False), (0.9, True)]:
            params = {"momentum": momentum, "decay": 0.1, "nesterov": nesterov}
            yield (draw(*shape), draw(*shape), draw(*shape), draw()), params

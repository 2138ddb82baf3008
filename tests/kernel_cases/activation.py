"""Cases of the kernels of activations."""

from collections.abc import Iterator

from tests.kernel_cases import SHAPES, Case, Draw


def case_relu(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        yield (draw(*shape),), {}


def case_relu_grad(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        yield (draw(*shape), draw(*shape)), {}


def case_gelu(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        for approximate in ("none", "tanh"):
            yield (3 * draw(*shape),), {"approximate": approximate}


def case_gelu_grad(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        for approximate in ("none", "tanh"):
            yield (draw(*shape), 3 * draw(*shape)), {"approximate": approximate}

"""Cases of the kernels of normalisations."""

from collections.abc import Iterator

from castile.kernels import reference
from tests.kernel_cases import SHAPES, Case, Draw


def case_layer_norm(draw: Draw) -> Iterator[Case]:
    for shape in [*SHAPES[2:], (2, 3, 63)]:
        yield (draw(*shape), draw(shape[-1]), draw(shape[-1])), {"eps": 1e-5}


def case_layer_norm_grad_input(draw: Draw) -> Iterator[Case]:
    for (x, g, b), params in case_layer_norm(draw):
        _, mean, rstd = reference.layer_norm(x, g, b, **params)
        yield (draw(*x.shape), x, g, mean, rstd), {}


def case_layer_norm_grad_params(draw: Draw) -> Iterator[Case]:
    for (x, g, b), params in case_layer_norm(draw):
        _, mean, rstd = reference.layer_norm(x, g, b, **params)
        yield (draw(*x.shape), x, mean, rstd), {}

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
        yield (draw(*x.shape), x, g, mean, rstd, draw(*x.shape)), {}


def case_layer_norm_grad_params(draw: Draw) -> Iterator[Case]:
    for (x, g, b), params in case_layer_norm(draw):
        _, mean, rstd = reference.layer_norm(x, g, b, **params)
        yield (draw(*x.shape), x, mean, rstd), {}


def case_rms_norm(draw: Draw) -> Iterator[Case]:
    for shape in [*SHAPES[2:], (2, 3, 63)]:
        yield (draw(*shape), draw(shape[-1])), {"eps": 1e-5}


def case_rms_norm_grad_input(draw: Draw) -> Iterator[Case]:
    for (x, g), params in case_rms_norm(draw):
        _, rstd = reference.rms_norm(x, g, **params)
        yield (draw(*x.shape), x, g, rstd), {}
        yield (draw(*x.shape), x, g, rstd, draw(*x.shape)), {}


def case_rms_norm_grad_params(draw: Draw) -> Iterator[Case]:
    for (x, g), params in case_rms_norm(draw):
        yield (draw(*x.shape), x, reference.rms_norm(x, g, **params)[1]), {}


def case_group_norm(draw: Draw) -> Iterator[Case]:
    for shape, groups in [
        ((3, 4), 2),
        ((1, 3, 5), 1),
        ((2, 6, 3, 4), 3),
        ((2, 4, 1, 1), 2),
        ((2, 3, 2, 2, 3), 1),
        ((5, 8, 17, 16), 4),
        # each channel by itself, whose image is a whole block of a program
        ((2, 3, 4, 4), 3),
    ]:
        yield (draw(*shape), draw(shape[1]), draw(shape[1])), {"groups": groups, "eps": 1e-2}


def case_group_norm_grad_input(draw: Draw) -> Iterator[Case]:
    for (x, g, b), params in case_group_norm(draw):
        yield (draw(*x.shape), x, g, *reference.group_norm(x, g, b, **params)[1:]), {}


def case_group_norm_grad_params(draw: Draw) -> Iterator[Case]:
    for (x, g, b), params in case_group_norm(draw):
        yield (draw(*x.shape), x, *reference.group_norm(x, g, b, **params)[1:]), {}

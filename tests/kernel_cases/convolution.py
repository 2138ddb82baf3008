"""Cases of the kernels of convolutions."""

from collections.abc import Iterator

from castile.kernels import reference
from tests.kernel_cases import IMAGES, Case, Draw


def case_conv2d(draw: Draw) -> Iterator[Case]:
    for x, o, kernel, stride, pads in IMAGES:
        yield (draw(*x), draw(o, x[1], *kernel)), {"stride": stride, "pads": pads}


def case_conv2d_grad_input(draw: Draw) -> Iterator[Case]:
    for (x, w), params in case_conv2d(draw):
        yield (draw(*reference.conv2d(x, w, **params).shape), w), params | {"shape": x.shape}


def case_conv2d_grad_weight(draw: Draw) -> Iterator[Case]:
    for (x, w), params in case_conv2d(draw):
        yield (draw(*reference.conv2d(x, w, **params).shape), x), params | {"kernel": w.shape[2:]}

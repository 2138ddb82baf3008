"""Cases of the kernels of convolutions."""

from collections.abc import Iterator

from castile.kernels import reference
from tests.kernel_cases import IMAGES, Case, Draw

# x, output channels, kernel, stride, pads, dilation, groups
SPECIAL = [
    ((2, 4, 9, 8), 6, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 2),
    ((1, 3, 10, 9), 3, (3, 2), (2, 1), (1, 0, 3, 0), (1, 3), 3),
    ((2, 6, 5, 6), 18, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 3),
    # of a few rows and columns nothing is seen
    ((2, 2, 9, 9), 11, (2, 3), (3, 2), (-1, -2, -1, 0), (1, 1), 1),
    ((2, 3, 12, 13), 9, (2, 2), (2, 3), (1, 2, -2, 1), (3, 2), 1),
    ((1, 2, 7, 6), 2, (1, 2), (3, 3), (0, 1, 0, 0), (1, 2), 1),
    ((3, 9, 3, 3), 17, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    # channels enough to be put next to each other, and places that are products of their own
    ((2, 16, 6, 31), 20, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((3, 17, 5, 4), 18, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((2, 18, 4, 8), 17, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((2, 16, 3, 3), 17, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    # channels of their own, with rows and columns left over
    ((2, 3, 9, 7), 3, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 3),
    # more small images than are summed at once
    ((41, 2, 4, 4), 9, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((43, 3, 5, 3), 10, (3, 2), (2, 2), (1, 1, 0, 1), (1, 1), 1),
    # groups of more inputs than outputs, whose blocks are padded, and of one channel, of which there are many
    ((2, 16, 5, 5), 6, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    ((3, 40, 4, 4), 40, (5, 5), (2, 1), (2, 2, 2, 2), (1, 1), 40),
    # small images of many channels, which are products of what their windows see
    ((5, 30, 2, 2), 34, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((3, 21, 4, 5), 24, (3, 2), (2, 1), (2, 1, 0, 3), (1, 2), 1),
    ((4, 20, 7, 5), 33, (2, 2), (3, 3), (0, 1, -1, 0), (1, 1), 1),
    ((3, 70, 2, 2), 280, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    # rows longer than what is summed at once
    ((1, 2, 3, 520), 3, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
]
# x, output channels, kernel, stride, pads before and after, dilation, groups
LINES = [
    ((2, 3, 9), 4, 3, 1, (1, 1), 1, 1),
    ((2, 4, 11), 6, 2, 3, (3, 0), 2, 2),
]


def case_conv2d(draw: Draw) -> Iterator[Case]:
    for x, o, kernel, stride, pads in IMAGES:
        yield (draw(*x), draw(o, x[1], *kernel)), _how(stride, pads)
    for x, o, kernel, stride, pads, dilation, groups in SPECIAL:
        yield (draw(*x), draw(o, x[1] // groups, *kernel)), _how(stride, pads, dilation, groups)
    for x, o, size, step, ends, gap, groups in LINES:
        yield (draw(*x), draw(o, x[1] // groups, size)), _how((1, step), (0, 0, *ends), (1, gap), groups)


def _how(stride, pads, dilation=(1, 1), groups=1) -> dict[str, object]:
    return {"stride": stride, "pads": pads, "dilation": dilation, "groups": groups}


def case_conv2d_grad_input(draw: Draw) -> Iterator[Case]:
    for (x, w), params in case_conv2d(draw):
        yield (draw(*reference.conv2d(x, w, **params).shape), w), params | {"shape": x.shape}
    for (x, w), params in case_conv2d(draw):
        if x.ndim == 3 or w.shape[2:] == (1, 1) or w.shape[1] == 1:
            yield (draw(*reference.conv2d(x, w, **params).shape), w, draw(*x.shape)), params | {"shape": x.shape}


def case_conv2d_grad_weight(draw: Draw) -> Iterator[Case]:
    for (x, w), params in case_conv2d(draw):
        yield (draw(*reference.conv2d(x, w, **params).shape), x), params | {"kernel": w.shape[2:]}

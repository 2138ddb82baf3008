"""Cases of operators: convolution."""

from castile.planner.ops.conv1d import Conv1d
from castile.planner.ops.conv2d import Conv2d
from castile.planner.ops.conv_transpose2d import ConvTranspose2d
from tests.op_cases import WINDOWS, case


def cases_conv2d(rng):
    for n, (height, width, kernel, stride, padding) in enumerate(WINDOWS):
        x, w = rng.normal(size=(3, 3, height, width)), rng.normal(size=(5, 3, *kernel))
        bias = [(rng.normal(size=5), "*o")] if n % 2 == 0 else []
        yield case(Conv2d(stride, padding), (x, "b c h w"), (w, "*o i r s"), *bias)
    # groups, each channel alone, and windows with gaps
    for op, i, o, g, size, kernel in (
        (Conv2d((1, 1), (1, 1), (1, 1), 2), 4, 6, 2, (5, 6), (3, 3)),
        (Conv2d((2, 1), (2, 0), (2, 3), 3), 3, 3, 3, (9, 8), (3, 2)),
        (Conv2d((1, 2), (2, 2), (2, 2), 1), 2, 3, 1, (7, 6), (3, 3)),
    ):
        bias = [(rng.normal(size=o), "*o")] if g == 2 else []
        x, w = rng.normal(size=(2, i, *size)), rng.normal(size=(o, i // g, *kernel))
        yield case(op, (x, "b c h w"), (w, "*o i r s"), *bias)


def cases_conv1d(rng):
    for op, i, o, length, kernel in (
        (Conv1d(), 3, 4, 7, 3),
        (Conv1d((2,), (2, 0), (1,), 1), 2, 5, 9, 3),
        (Conv1d((1,), (4, 0), (2,), 2), 4, 2, 6, 3),
        (Conv1d((3,), (1, 1), (1,), 3), 3, 6, 8, 2),
    ):
        bias = [(rng.normal(size=o), "*o")] if op.g < 3 else []
        w = rng.normal(size=(o, i // op.g, kernel))
        yield case(op, (rng.normal(size=(3, i, length)), "b c l"), (w, "*o i r"), *bias)


def cases_conv_transpose2d(rng):
    for op, i, o, size, kernel in (
        (ConvTranspose2d(), 3, 4, (3, 4), (3, 2)),
        (ConvTranspose2d((2, 2), (1, 1), (1, 1)), 2, 3, (4, 3), (3, 3)),
        (ConvTranspose2d((2, 1), (0, 2), (0, 0), (1, 2), 2), 4, 2, (3, 5), (2, 3)),
        # between the windows nothing is reached, and some parts see nothing at all
        (ConvTranspose2d((4, 3), (0, 0), (3, 0)), 2, 2, (3, 3), (1, 2)),
        (ConvTranspose2d((1, 1), (2, 0), (0, 0), (1, 1), 3), 3, 3, (4, 4), (3, 1)),
    ):
        bias = [(rng.normal(size=o), "*o")] if op.stride[0] > 1 else []
        w = rng.normal(size=(i, o // op.g, *kernel))
        yield case(op, (rng.normal(size=(2, i, *size)), "b c h w"), (w, "*i o r s"), *bias)

"""Cases of operators: convolution."""

from castile.planner.ops.conv2d import Conv2d
from tests.op_cases import WINDOWS, case


def cases_conv2d(rng):
    for n, (height, width, kernel, stride, padding) in enumerate(WINDOWS):
        x, w = rng.normal(size=(3, 3, height, width)), rng.normal(size=(5, 3, *kernel))
        bias = [(rng.normal(size=5), "*o")] if n % 2 == 0 else []
        yield case(Conv2d(stride, padding), (x, "b c h w"), (w, "*o i r s"), *bias)

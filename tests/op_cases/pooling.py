"""Cases of operators: pooling."""

from castile.planner.ops.max_pool2d import MaxPool2d
from tests.op_cases import WINDOWS, case


def cases_max_pool2d(rng):
    for height, width, kernel, stride, padding in WINDOWS:
        x = rng.normal(size=(3, 2, height, width))
        yield case(MaxPool2d(kernel, stride, padding), (x, "b c h w"))

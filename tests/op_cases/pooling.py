"""Cases of operators: pooling."""

from castile.planner.ops.avg_pool2d import AvgPool2d
from castile.planner.ops.global_pool import GlobalPool
from castile.planner.ops.max_pool2d import MaxPool2d
from tests.op_cases import WINDOWS, case


def cases_max_pool2d(rng):
    for height, width, kernel, stride, padding in WINDOWS:
        x = rng.normal(size=(3, 2, height, width))
        yield case(MaxPool2d(kernel, stride, padding), (x, "b c h w"))


def cases_avg_pool2d(rng):
    for n, (height, width, kernel, stride, padding) in enumerate(WINDOWS):
        x = rng.normal(size=(3, 2, height, width))
        yield case(AvgPool2d(kernel, stride, padding, n % 3 > 0), (x, "b c h w"))


def cases_global_pool(rng):
    for shape, axes in (((3, 2, 5, 4), "b c h w"), ((2, 3, 7), "b c l"), ((4, 3), "b c")):
        yield case(GlobalPool(), (rng.normal(size=shape), axes))

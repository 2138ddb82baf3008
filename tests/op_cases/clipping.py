"""Cases of operators: clipping by the global norm."""

import numpy as np

from castile.planner.op import find
from castile.planner.ops.clip_factor import ClipFactor
from castile.planner.ops.loss_scale import LossScale
from castile.planner.ops.unscale import Unscale
from tests.op_cases import case, elementwise


def cases_square_sum(rng):
    yield from elementwise(find("square_sum")(), rng)


def cases_clip_factor(rng):
    for most in (0.5, 100.0):
        yield case(ClipFactor(most), (np.array(7.5), ""))


def cases_clip(rng):
    for shape, axes in (((5,), "b"), ((4, 7), "b d")):
        yield case(find("clip")(), (rng.normal(size=shape), axes), (np.array(0.3), ""))


def cases_unscale(rng):
    for most in (0.5, np.inf):
        yield case(Unscale(most), *((np.array(number), "") for number in (7.5, 1024.0, 3.0)))


def cases_loss_scale(rng):
    for streak, factor in ((0.0, 0.5), (4.0, 0.5), (3.0, 0.0)):
        numbers = (256.0, streak, 9.0, factor)
        yield case(LossScale(5), *((np.array(number), "") for number in numbers))

"""Cases of operators: clipping by the global norm."""

import numpy as np

from castile.planner.op import find
from castile.planner.ops.clip_factor import ClipFactor
from tests.op_cases import case, elementwise


def cases_square_sum(rng):
    yield from elementwise(find("square_sum")(), rng)


def cases_clip_factor(rng):
    for most in (0.5, 100.0):
        yield case(ClipFactor(most), (np.array(7.5), ""))


def cases_clip(rng):
    for shape, axes in (((5,), "b"), ((4, 7), "b d")):
        yield case(find("clip")(), (rng.normal(size=shape), axes), (np.array(0.3), ""))

"""Cases of operators: loss."""

import numpy as np

from castile.planner.op import find
from tests.op_cases import case


def cases_cross_entropy(rng):
    for shape, axes in (((6,), "v"), ((5, 4), "b v"), ((3, 5, 7), "b s v")):
        labels = rng.integers(0, shape[-1], shape[:-1]).astype(np.int32)
        leading = " ".join(axes.split()[:-1])
        yield case(find("cross_entropy")(), (3 * rng.normal(size=shape), axes), (labels, leading))


def cases_mse(rng):
    for shape, axes in (((6,), "b"), ((5, 4), "b d"), ((3, 5, 7), "b s d")):
        yield case(find("mse")(), *((rng.normal(size=shape), axes) for _ in range(2)))


def cases_bce(rng):
    for shape, axes in (((6,), "b"), ((5, 4), "b d"), ((3, 5, 7), "b s d")):
        yield case(find("bce")(), (3 * rng.normal(size=shape), axes), (rng.uniform(size=shape), axes))

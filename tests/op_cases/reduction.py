"""Cases of operators: reductions over dims."""

import numpy as np

from castile.planner.op import find
from tests.op_cases import case, elementwise


def over_dims(name, rng):
    for dims in ((1,), (-1, 0), (0, 1, 2, 3), ()):
        yield case(find(name)(dims), (rng.normal(size=(5, 3, 4, 2)), "b c h w"))


def cases_sum(rng):
    yield from elementwise(find("sum")(), rng)
    yield from over_dims("sum", rng)


def cases_mean(rng):
    yield from elementwise(find("mean")(), rng)
    yield from over_dims("mean", rng)


def cases_max(rng):
    for dims in ((-1,), (3, 1)):
        yield case(find("max")(dims), (rng.normal(size=(5, 3, 4, 2)), "b c h d"))
    yield case(find("max")(), (rng.normal(size=(3, 5)), "b d"))
    yield case(find("max")((0,)), (rng.normal(size=(3, 5)), "d b"))


def cases_softmax(rng):
    for shape, axes in (((6,), "v"), ((5, 4), "b v"), ((3, 5, 7), "b s v")):
        yield case(find("softmax")(), (3 * rng.normal(size=shape), axes))


def cases_safe_softmax(rng):
    for shape, axes in (((6,), "v"), ((5, 4), "b v"), ((3, 5, 7), "b s v")):
        yield case(find("safe_softmax")(), (3 * rng.normal(size=shape), axes))
    seen = rng.integers(0, 2, (5, 4)) * (np.arange(5)[:, None] != 2)
    yield case(find("safe_softmax")(), (np.where(seen, rng.normal(size=(5, 4)), -np.inf), "b v"))


def cases_log_softmax(rng):
    for shape, axes in (((6,), "v"), ((5, 4), "b v"), ((3, 5, 7), "b s v")):
        yield case(find("log_softmax")(), (3 * rng.normal(size=shape), axes))

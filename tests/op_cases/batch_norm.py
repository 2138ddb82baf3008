"""Cases of operators: batch normalisation."""

import numpy as np

from castile.planner.ops.batch_factors import BatchFactors
from castile.planner.ops.batch_moments import BatchMoments
from castile.planner.ops.batch_norm import BatchNorm
from castile.planner.ops.running_moment import RunningMoment
from tests.op_cases import case

SHAPES = (((4, 3, 5, 2), "b c h w"), ((5, 4), "b c"), ((3, 2, 7), "b c l"))


def cases_batch_moments(rng):
    for shape, axes in SHAPES:
        yield case(BatchMoments(), (rng.normal(1, 2, size=shape), axes))


def cases_batch_norm(rng):
    for shape, axes in SHAPES:
        yield case(BatchNorm(), (rng.normal(size=shape), axes), (rng.normal(size=(3, shape[1])), "f c"))


def cases_batch_factors(rng):
    for c, eps in ((5, 1e-5), (3, 0.5)):
        params = [(rng.normal(size=c), "*c"), (rng.normal(size=c), "*c")]
        mean, variance = rng.normal(size=c), rng.uniform(0.5, 2, size=c)
        yield case(BatchFactors(eps), (np.stack([mean, variance + mean**2]), "m c"), *params)
        yield case(BatchFactors(eps), (mean, "c"), (variance, "c"), *params)


def cases_running_moment(rng):
    for c, momentum, count, variance in ((5, 0.1, 8, True), (4, 0.5, 100, False)):
        moments = np.stack([rng.normal(size=c), rng.uniform(5, 9, size=c)])
        yield case(RunningMoment(momentum, count, variance), (rng.normal(size=c), "c"), (moments, "m c"))

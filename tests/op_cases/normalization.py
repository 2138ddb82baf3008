"""Cases of operators: normalization."""

import numpy as np

from castile.planner.op import find
from castile.planner.ops.layer_norm import LayerNorm
from tests.op_cases import case


def cases_layer_norm(rng):
    for shape, axes in (((7,), "d"), ((5, 6), "b d"), ((3, 4, 5), "b s d")):
        g, b = rng.normal(size=shape[-1]), rng.normal(size=shape[-1])
        yield case(LayerNorm(), (rng.normal(size=shape), axes), (g, "*d"), (b, "*d"))
    yield case(LayerNorm(0.1), (rng.normal(size=(4, 8)), "b d"), (np.ones(8), "*d"), (np.zeros(8), "*d"))


def cases_rms_norm(rng):
    for shape, axes in (((7,), "d"), ((5, 6), "b d"), ((3, 4, 5), "b s d")):
        yield case(find("rms_norm")(), (rng.normal(size=shape), axes), (rng.normal(size=shape[-1]), "*d"))
    yield case(find("rms_norm")(0.1), (rng.normal(size=(4, 8)), "b d"), (np.ones(8), "*d"))


def cases_group_norm(rng):
    for shape, axes, groups in (
        ((3, 6), "b c", 3),
        ((2, 4, 5), "b c l", 2),
        ((3, 5, 2, 3), "b c h w", 1),
        ((2, 6, 3, 1), "b g h w", 3),
    ):
        g, b = rng.normal(size=shape[1]), rng.normal(size=shape[1])
        yield case(find("group_norm")(groups), (rng.normal(size=shape), axes), (g, "*c"), (b, "*c"))

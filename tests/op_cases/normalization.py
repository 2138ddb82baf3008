"""Cases of operators: normalization."""

import numpy as np

from castile.planner.ops.layer_norm import LayerNorm
from tests.op_cases import case


def cases_layer_norm(rng):
    for shape, axes in (((7,), "d"), ((5, 6), "b d"), ((3, 4, 5), "b s d")):
        g, b = rng.normal(size=shape[-1]), rng.normal(size=shape[-1])
        yield case(LayerNorm(), (rng.normal(size=shape), axes), (g, "*d"), (b, "*d"))
    yield case(LayerNorm(0.1), (rng.normal(size=(4, 8)), "b d"), (np.ones(8), "*d"), (np.zeros(8), "*d"))

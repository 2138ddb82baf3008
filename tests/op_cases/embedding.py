"""Cases of operators: embedding."""

import numpy as np

from castile.planner.op import find
from tests.op_cases import case


def cases_embedding(rng):
    for shape, axes in (((5,), "b"), ((3, 5), "b s"), ((2, 3, 2), "b s d")):
        ids = rng.integers(0, 6, shape).astype(np.int32)
        yield case(find("embedding")(), (ids, axes), (rng.normal(size=(6, 5)), "*v d"))

"""Cases of operators: bags of embeddings."""

import numpy as np

from castile.planner.op import find
from tests.op_cases import case


def cases_embedding_bag(rng):
    for shape, axes, mean in (((5,), "n", False), ((3, 5), "b n", True), ((2, 3, 2), "b s n", False)):
        ids = rng.integers(0, 6, shape).astype(np.int32)
        table, weights = (rng.normal(size=(6, 5)), "*v d"), (rng.normal(size=shape), axes)
        yield case(find("embedding_bag")(mean), (ids, axes), table)
        yield case(find("embedding_bag")(mean), (ids, axes), table, weights)

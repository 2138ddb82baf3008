"""Cases of operators: a cross-entropy over blocks of classes."""

import numpy as np

from castile.planner.op import find
from tests.op_cases import case


def cases_block_entropy(rng):
    for shape, axes, blocks in (
        ((6,), "v", 3),
        ((5, 4), "b v", 1),
        ((3, 5, 6), "b s v", 3),
        ((4, 8), "b v", 8),
        ((3, 13), "b v", 5),
        ((2, 3, 7), "b s v", 4),
    ):
        labels = rng.integers(0, shape[-1], shape[:-1]).astype(np.int32)
        leading = " ".join(axes.split()[:-1])
        yield case(find("block_entropy")(blocks), (3 * rng.normal(size=shape), axes), (labels, leading))


def cases_split_cross_entropy(rng):
    for shape, axes in (((3, 2), "p c"), ((5, 4, 2), "b p c"), ((3, 5, 1, 2), "b s p c")):
        yield case(find("split_cross_entropy")(), (3 * rng.normal(size=shape), axes))

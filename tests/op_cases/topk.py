"""Cases of operators: the largest elements."""

import numpy as np

from castile.planner.op import find
from tests.op_cases import case


def cases_topk(rng):
    for shape, axes, count in (((7,), "v", 3), ((5, 6), "b v", 6), ((3, 4, 5), "b s v", 2)):
        # far enough apart for differences
        x = rng.permuted(np.broadcast_to(np.arange(shape[-1]) * 1.0, shape), axis=-1)
        yield case(find("topk")(count), (x, axes))

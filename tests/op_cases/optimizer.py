"""Cases of operators: optimizer."""

import numpy as np

from castile.planner.ops.sgd import Sgd
from tests.op_cases import case


def cases_sgd(rng):
    for settings in ((0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.01, True)):
        for shape, axes in (((7,), "o"), ((5, 3), "o i")):
            w, g, m = ((rng.normal(size=shape), axes) for _ in range(3))
            yield case(Sgd(*settings), w, g, m, (np.array(0.1), ""))

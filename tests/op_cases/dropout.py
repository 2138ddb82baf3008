"""Cases of operators: dropout."""

import numpy as np

from castile.planner.ops.dropout import Dropout
from tests.op_cases import case


def cases_dropout(rng):
    noise = (np.array(rng.integers(0, 2**63)), "")
    for shape, axes in (((7,), "b"), ((5, 6), "b d"), ((3, 2, 5, 2), "b c h w")):
        yield case(Dropout(0.4, 12345), (rng.normal(size=shape), axes), noise)

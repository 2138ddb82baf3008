"""Arithmetic on each element and on numbers of its channel, in one pass over memory.

It knows no line of arithmetic.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from castile.kernels.form import prepares
from castile.kernels.numpy.elementwise import pointwise


@prepares
def channelwise(
    out: np.ndarray, line: str, *xs: np.ndarray, tables: int, accumulate: bool, **constants: float
) -> Callable[[], Any] | None:
    """See the definition."""
    arrays, last = xs[: len(xs) - tables], xs[len(xs) - tables :]
    # one number for each channel of what lies dense below it, as a view
    rows = [row.reshape(-1, *[1] * (out.ndim - 2), copy=False) for table in last for row in table]
    return pointwise(out, line, *arrays, *rows, accumulate=accumulate, **constants)

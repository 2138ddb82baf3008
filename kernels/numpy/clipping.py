"""Clipping by the global norm: sums of squares by BLAS, and a scaling in one pass.

It knows no optimizer.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.form import prepares


@prepares
def square_sum(out: np.ndarray, x: np.ndarray) -> Callable[[], Any] | None:
    """See the definition."""
    return partial(_square_sum, out, x.reshape(-1)) if x.flags.c_contiguous else None


def _square_sum(out: np.ndarray, x: np.ndarray) -> None:
    out[...] = np.dot(x, x)


def clip_factor(out: tuple[np.ndarray, np.ndarray], squares: np.ndarray, *, most: float) -> None:
    """See the definition."""
    factor, norm = out
    norm[...] = np.sqrt(squares)
    factor[...] = min(1.0, most / (float(norm) + 1e-6))


def times(out: np.ndarray, x: np.ndarray, factor: np.ndarray) -> None:
    """See the definition."""
    np.multiply(x, factor, out=out)

"""Definitions of sums and maxima over dims, and of the way back, in plain NumPy."""

import numpy as np

from castile.kernels.half_precision import castable
from castile.kernels.reference.elementwise import pointwise


@castable
def sum_over(x: np.ndarray, *, dims: tuple[int, ...]) -> np.ndarray:
    """Sum of x over `dims`, which the result lacks; over all dims the result is [] (a 0-d array)."""
    return np.array(np.sum(x, axis=tuple(dims), dtype=x.dtype))


@castable
def sum_pointwise(expression: str, *xs: np.ndarray, dims: tuple[int, ...], **constants: float) -> np.ndarray:
    """Sum over `dims`, which the result lacks, of `pointwise`."""
    return sum_over(pointwise(expression, *xs, **constants), dims=dims)


def max_over(x: np.ndarray, *, dims: tuple[int, ...]) -> np.ndarray:
    """Largest element of x over `dims`, which the result lacks; a NaN is larger than any number."""
    return np.array(np.max(x, axis=tuple(dims)))


def expand(x: np.ndarray, *, shape: tuple[int, ...], dims: tuple[int, ...] | None = None) -> np.ndarray:
    """x repeated along `dims` of `shape`, which x lacks; by default these are all dims and x is a scalar []."""
    new = tuple(range(len(shape))) if dims is None else dims
    return np.array(np.broadcast_to(np.expand_dims(x, new), shape))

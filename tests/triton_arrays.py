"""Arrays of any size that take no memory, for what looks at shapes and steps only; it knows no kernel."""

from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from castile.kernels.choice import Array


def array(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An array that lies dense as far as it tells, of which one element is there."""
    steps = [prod(shape[dim + 1 :]) * np.dtype(dtype).itemsize for dim in range(len(shape))]
    return as_strided(np.zeros(1, dtype), shape, steps)


def laid(x: Any) -> Any:
    """An array with the steps that a call's name tells; what is no array stays."""
    return as_strided(np.zeros(1, x.dtype), x.shape, x.strides) if isinstance(x, Array) else x


def boxed(x: Any) -> Any:
    """x as a box inside an array twice as long in each dim; what is no array stays."""
    if not hasattr(x, "strides"):
        return x
    return as_strided(np.zeros(1, x.dtype), x.shape, array(tuple(2 * n for n in x.shape), x.dtype.name).strides)


def by_columns(x: Any) -> Any:
    """x with its dims in memory the other way round, the first innermost."""
    return array(x.shape[::-1], x.dtype.name).T


def outermost(x: Any) -> Any:
    """x with its last dim outermost in memory; what is no array stays."""
    if not hasattr(x, "strides") or x.ndim < 2:
        return x
    return np.moveaxis(array((x.shape[-1], *x.shape[:-1]), x.dtype.name), 0, -1)

"""Arrays of any size that take no memory, for what looks at shapes and steps only."""

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

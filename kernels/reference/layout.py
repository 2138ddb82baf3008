"""Definitions of how arrays are laid out: dims in another order, side by side, a range of one, in plain NumPy."""

import numpy as np


def rearrange(x: np.ndarray, *, apart: tuple[int, ...], dims: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """The dims of x divided into those of `apart`, put in the order `dims`, and joined into those of `shape`."""
    return np.array(x.reshape(apart).transpose(dims).reshape(shape))


def concat(*xs: np.ndarray, dim: int) -> np.ndarray:
    """The arrays side by side along dim `dim`, in which alone their shapes differ."""
    return np.concatenate(xs, axis=dim)


def cut(x: np.ndarray, *, dim: int, start: int, stop: int) -> np.ndarray:
    """The elements start to stop - 1 of x along dim `dim`."""
    return np.array(x[(slice(None),) * dim + (slice(start, stop),)])

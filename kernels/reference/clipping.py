"""Definitions of clipping by the global norm in plain NumPy."""

import numpy as np

from castile.kernels.form import sums


@sums
def square_sum(x: np.ndarray, *more: np.ndarray) -> np.ndarray:
    """Sum of the squares of x -> []; more: further arrays, whose sums are added one after the other."""
    squares = np.array(np.sum(x * x, dtype=x.dtype))
    for one in more:
        squares += np.sum(one * one, dtype=x.dtype)
    return squares


def clip_factor(squares: np.ndarray, *, most: float) -> tuple[np.ndarray, np.ndarray]:
    """The norm's square [] -> min(1, most / (norm + 1e-6)), as PyTorch's clip_grad_norm_, and the norm; both []."""
    norm = np.sqrt(squares)
    return np.array(np.minimum(1, most / (norm + 1e-6)), squares.dtype), np.array(norm)


def times(x: np.ndarray, factor: np.ndarray, *more: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
    """x times factor []; more: further arrays, each with its factor, whose products follow."""
    products = [np.array(one * by) for one, by in zip((x, *more[::2]), (factor, *more[1::2]), strict=True)]
    return tuple(products) if more else products[0]

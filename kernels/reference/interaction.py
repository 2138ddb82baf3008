"""Definitions of the products of pairs of vectors in plain NumPy."""

import numpy as np


def pair_dots(x: np.ndarray) -> np.ndarray:
    """Of each sample's vectors x [b,f,d] the products of all pairs -> [b, f (f - 1) / 2]: 1 0, 2 0, 2 1, 3 0, ..."""
    first, second = np.tril_indices(x.shape[1], -1)
    return np.array((x[:, first] * x[:, second]).sum(axis=-1))


def pair_dots_grad(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Gradient of `pair_dots` to its x."""
    first, second = np.tril_indices(x.shape[1], -1)
    made = np.zeros_like(x)
    for pair, (one, other) in enumerate(zip(first, second, strict=True)):
        made[:, one] += dy[:, pair, None] * x[:, other]
        made[:, other] += dy[:, pair, None] * x[:, one]
    return made

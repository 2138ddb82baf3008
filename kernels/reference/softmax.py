"""Definitions of the softmax over the last dim in plain NumPy."""

import numpy as np


def softmax(x: np.ndarray) -> np.ndarray:
    """e^x over the sum of e^x along the last dim."""
    return np.exp(log_softmax(x))


def softmax_grad(dy: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Gradient of `softmax` to its x, given its result y."""
    return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


def log_softmax(x: np.ndarray) -> np.ndarray:
    """x less the logarithm of the sum of e^x along the last dim."""
    below = x - x.max(axis=-1, keepdims=True)
    return below - np.log(np.exp(below).sum(axis=-1, keepdims=True))


def log_softmax_grad(dy: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Gradient of `log_softmax` to its x, given its result y."""
    return dy - np.exp(y) * dy.sum(axis=-1, keepdims=True)

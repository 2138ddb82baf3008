"""Definitions of optimizers in plain NumPy."""

import numpy as np


def sgd(
    w: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    lr: np.ndarray,
    *,
    momentum: float,
    decay: float,
    nesterov: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """One step of stochastic gradient descent with momentum as PyTorch defines it; lr is [] -> new w, new m."""
    g = g + w.dtype.type(decay) * w
    m = w.dtype.type(momentum) * m + g
    step = g + w.dtype.type(momentum) * m if nesterov else m
    return w - lr.astype(w.dtype) * step, m

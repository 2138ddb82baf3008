"""Definitions of normalisations in plain NumPy."""

import numpy as np


def layer_norm(x: np.ndarray, g: np.ndarray, b: np.ndarray, *, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Layer normalisation (Ba et al. 2016) over the last dim: y like x, mean and 1 / deviation x.shape[:-1]."""
    mean = x.mean(axis=-1)
    rstd = (1 / np.sqrt(x.var(axis=-1) + eps)).astype(x.dtype)
    return _standard(x, mean, rstd) * g + b, mean, rstd


def layer_norm_grad_input(
    dy: np.ndarray, x: np.ndarray, g: np.ndarray, mean: np.ndarray, rstd: np.ndarray
) -> np.ndarray:
    """Gradient of `layer_norm` to its x."""
    z, dz = _standard(x, mean, rstd), dy * g
    inner = dz - dz.mean(axis=-1, keepdims=True) - z * (dz * z).mean(axis=-1, keepdims=True)
    return inner * rstd[..., None]


def layer_norm_grad_params(
    dy: np.ndarray, x: np.ndarray, mean: np.ndarray, rstd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of `layer_norm` to its g and b, both [x.shape[-1]]."""
    leading = tuple(range(x.ndim - 1))
    return np.array((dy * _standard(x, mean, rstd)).sum(axis=leading)), np.array(dy.sum(axis=leading))


def _standard(x: np.ndarray, mean: np.ndarray, rstd: np.ndarray) -> np.ndarray:
    return (x - mean[..., None]) * rstd[..., None]

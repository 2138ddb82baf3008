"""Definitions of normalisations in plain NumPy."""

import numpy as np

from castile.kernels.half_precision import castable


def layer_norm(x: np.ndarray, g: np.ndarray, b: np.ndarray, *, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Layer normalisation (Ba et al. 2016) over the last dim: y like x, mean and 1 / deviation x.shape[:-1]."""
    mean = x.mean(axis=-1)
    rstd = (1 / np.sqrt(x.var(axis=-1) + eps)).astype(x.dtype)
    return _standard(x, mean, rstd) * g + b, mean, rstd


def layer_norm_grad_input(
    dy: np.ndarray, x: np.ndarray, g: np.ndarray, mean: np.ndarray, rstd: np.ndarray, onto: np.ndarray | None = None
) -> np.ndarray:
    """Gradient of `layer_norm` to its x, added to `onto` where that is given."""
    z, dz = _standard(x, mean, rstd), dy * g
    inner = dz - dz.mean(axis=-1, keepdims=True) - z * (dz * z).mean(axis=-1, keepdims=True)
    made = inner * rstd[..., None]
    return made if onto is None else made + onto


@castable
def layer_norm_grad_params(
    dy: np.ndarray, x: np.ndarray, mean: np.ndarray, rstd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of `layer_norm` to its g and b, both [x.shape[-1]]."""
    leading = tuple(range(x.ndim - 1))
    return np.array((dy * _standard(x, mean, rstd)).sum(axis=leading)), np.array(dy.sum(axis=leading))


def rms_norm(x: np.ndarray, g: np.ndarray, *, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Root mean square normalisation (Zhang and Sennrich 2019) over the last dim: y like x, 1 / size x.shape[:-1]."""
    rstd = (1 / np.sqrt((x * x).mean(axis=-1) + eps)).astype(x.dtype)
    return x * rstd[..., None] * g, rstd


def rms_norm_grad_input(
    dy: np.ndarray, x: np.ndarray, g: np.ndarray, rstd: np.ndarray, onto: np.ndarray | None = None
) -> np.ndarray:
    """Gradient of `rms_norm` to its x, added to `onto` where that is given."""
    z, dz = x * rstd[..., None], dy * g
    made = (dz - z * (dz * z).mean(axis=-1, keepdims=True)) * rstd[..., None]
    return made if onto is None else made + onto


@castable
def rms_norm_grad_params(dy: np.ndarray, x: np.ndarray, rstd: np.ndarray) -> np.ndarray:
    """Gradient of `rms_norm` to its g [x.shape[-1]]."""
    return np.array((dy * x * rstd[..., None]).sum(axis=tuple(range(x.ndim - 1))))


def group_norm(
    x: np.ndarray, g: np.ndarray, b: np.ndarray, *, groups: int, eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Group normalisation (Wu and He 2018) of x [b,c,...]: y like x, mean and 1 / deviation [b,groups].

    A group is c / groups neighbouring channels of one sample; g [c] and b [c] scale and shift.
    """
    apart = x.reshape(len(x), groups, -1)
    mean = apart.mean(axis=-1)
    rstd = (1 / np.sqrt(apart.var(axis=-1) + eps)).astype(x.dtype)
    z = _standard(apart, mean, rstd).reshape(x.shape)
    return z * _channels(g, x) + _channels(b, x), mean, rstd


def group_norm_grad_input(
    dy: np.ndarray, x: np.ndarray, g: np.ndarray, mean: np.ndarray, rstd: np.ndarray
) -> np.ndarray:
    """Gradient of `group_norm` to its x."""
    dz = (dy * _channels(g, x)).reshape(*mean.shape, -1)
    z = _standard(x.reshape(dz.shape), mean, rstd)
    inner = dz - dz.mean(axis=-1, keepdims=True) - z * (dz * z).mean(axis=-1, keepdims=True)
    return (inner * rstd[..., None]).reshape(x.shape)


@castable
def group_norm_grad_params(
    dy: np.ndarray, x: np.ndarray, mean: np.ndarray, rstd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of `group_norm` to its g and b, both [c]."""
    z = _standard(x.reshape(*mean.shape, -1), mean, rstd).reshape(x.shape)
    others = (0, *range(2, x.ndim))
    return np.array((dy * z).sum(axis=others)), np.array(dy.sum(axis=others))


def _channels(v: np.ndarray, x: np.ndarray) -> np.ndarray:
    return v.reshape(-1, *[1] * (x.ndim - 2))


def _standard(x: np.ndarray, mean: np.ndarray, rstd: np.ndarray) -> np.ndarray:
    return (x - mean[..., None]) * rstd[..., None]

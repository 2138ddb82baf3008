"""Definitions of pooling in plain NumPy."""

import numpy as np

from castile.kernels.windows import Pads, Pair, count, pad, tap, unpad


def max_pool2d(x: np.ndarray, *, kernel: Pair, stride: Pair, pads: Pads) -> np.ndarray:
    """Largest element of each window of x [b,c,H,W]; the padding counts as -inf -> [b,c,h,w]."""
    padded = pad(x, pads, -np.inf)
    size = count(padded.shape[2:], kernel, stride)
    return np.max([tap(padded, r, s, size, stride) for r, s in np.ndindex(*kernel)], axis=0)


def max_pool2d_grad(dy: np.ndarray, x: np.ndarray, *, kernel: Pair, stride: Pair, pads: Pads) -> np.ndarray:
    """dy [b,c,h,w] added where `max_pool2d` took its value: the first maximum of a window in row-major order."""
    padded = pad(x, pads, -np.inf)
    size = dy.shape[2:]
    first = np.argmax([tap(padded, r, s, size, stride) for r, s in np.ndindex(*kernel)], axis=0)
    dx = np.zeros_like(padded)
    for number, (r, s) in enumerate(np.ndindex(*kernel)):
        met = tap(dx, r, s, size, stride)
        met += np.where(first == number, dy, dy.dtype.type(0))
    return unpad(dx, pads, x.shape)


def avg_pool2d(x: np.ndarray, *, kernel: Pair, stride: Pair, pads: Pads, padded: bool) -> np.ndarray:
    """Mean of each window of x [b,c,H,W] -> [b,c,h,w]; the padding counts as zeros if `padded`, else not at all."""
    wide = pad(x, pads, 0)
    size = count(wide.shape[2:], kernel, stride)
    total = np.sum([tap(wide, r, s, size, stride) for r, s in np.ndindex(*kernel)], axis=0)
    return total / _counted(x.shape[2:], x.dtype, kernel, stride, pads, padded)


def avg_pool2d_grad(
    dy: np.ndarray, *, shape: tuple[int, ...], kernel: Pair, stride: Pair, pads: Pads, padded: bool
) -> np.ndarray:
    """Gradient of `avg_pool2d` to its x of `shape`, from dy [b,c,h,w]."""
    dx = pad(np.zeros(shape, dy.dtype), pads, 0)
    share = dy / _counted(shape[2:], dy.dtype, kernel, stride, pads, padded)
    for r, s in np.ndindex(*kernel):
        met = tap(dx, r, s, dy.shape[2:], stride)
        met += share
    return unpad(dx, pads, shape)


def _counted(
    size: tuple[int, ...], dtype: np.dtype, kernel: Pair, stride: Pair, pads: Pads, padded: bool
) -> np.ndarray:
    """How many elements the mean of each window [h,w] is of."""
    ones = pad(np.ones((1, 1, *size), dtype), pads, float(padded))
    shape = count(ones.shape[2:], kernel, stride)
    return np.sum([tap(ones, r, s, shape, stride)[0, 0] for r, s in np.ndindex(*kernel)], axis=0, dtype=dtype)


def global_pool(x: np.ndarray, *, scale: float) -> np.ndarray:
    """Sum of x [b,c,...] over all but b and c, times `scale` -> [b,c]."""
    return np.array(x.sum(axis=tuple(range(2, x.ndim))) * x.dtype.type(scale))


def global_pool_grad(dy: np.ndarray, *, shape: tuple[int, ...], scale: float) -> np.ndarray:
    """dy [b,c] times `scale` at every place of `shape` [b,c,...]."""
    places = dy.reshape(*dy.shape, *[1] * (len(shape) - 2))
    return np.array(np.broadcast_to(places * dy.dtype.type(scale), shape))

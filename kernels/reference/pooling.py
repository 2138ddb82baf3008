"""Definitions of pooling in plain NumPy."""

import numpy as np

from castile.kernels.windows import Pads, Pair, count, pad, tap


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
    return np.array(dx[:, :, pads[0] : pads[0] + x.shape[2], pads[2] : pads[2] + x.shape[3]])

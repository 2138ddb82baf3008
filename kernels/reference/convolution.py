"""Definitions of convolutions in plain NumPy."""

import numpy as np

from castile.kernels.windows import Pads, Pair, count, pad, tap


def conv2d(x: np.ndarray, w: np.ndarray, *, stride: Pair, pads: Pads) -> np.ndarray:
    """Cross-correlation of x [b,i,H,W] with w [o,i,r,s] -> [b,o,h,w]; pads (top, bottom, left, right) hold zeros."""
    padded = pad(x, pads, 0)
    height, width = count(padded.shape[2:], w.shape[2:], stride)
    y = np.zeros((x.shape[0], w.shape[0], height, width), x.dtype)
    for r, s in np.ndindex(*w.shape[2:]):
        y += np.einsum("bihw,oi->bohw", tap(padded, r, s, (height, width), stride), w[:, :, r, s])
    return y


def conv2d_grad_input(dy: np.ndarray, w: np.ndarray, *, shape: tuple[int, ...], stride: Pair, pads: Pads) -> np.ndarray:
    """Gradient of `conv2d` to its x [b,i,H,W] = `shape`, from dy [b,o,h,w]; zero where no window reads x."""
    padded = pad(np.zeros(shape, dy.dtype), pads, 0)
    for r, s in np.ndindex(*w.shape[2:]):
        met = tap(padded, r, s, dy.shape[2:], stride)
        met += np.einsum("bohw,oi->bihw", dy, w[:, :, r, s])
    return np.array(padded[:, :, pads[0] : pads[0] + shape[2], pads[2] : pads[2] + shape[3]])


def conv2d_grad_weight(dy: np.ndarray, x: np.ndarray, *, kernel: Pair, stride: Pair, pads: Pads) -> np.ndarray:
    """Gradient of `conv2d` to its w [o,i,r,s], (r, s) = `kernel`, from dy [b,o,h,w] and x [b,i,H,W]."""
    padded = pad(x, pads, 0)
    dw = np.zeros((dy.shape[1], x.shape[1], *kernel), x.dtype)
    for r, s in np.ndindex(*kernel):
        dw[:, :, r, s] = np.einsum("bohw,bihw->oi", dy, tap(padded, r, s, dy.shape[2:], stride))
    return dw

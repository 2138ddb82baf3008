"""Definitions of convolutions in plain NumPy.

Images without rows, [b,c,W], are meant where an array has three dims; of stride, pads and dilation the rows' stay.
"""

from typing import Any

import numpy as np

from castile.kernels.half_precision import castable
from castile.kernels.windows import Pads, Pair, count, extents, pad, tap, unpad


def conv2d(
    x: np.ndarray, w: np.ndarray, *, stride: Pair, pads: Pads, dilation: Pair = (1, 1), groups: int = 1
) -> np.ndarray:
    """Cross-correlation of x [b,i,H,W] with w [o,i/groups,r,s] -> [b,o,h,w]; pads (top, bottom, left, right) are zeros.

    Negative pads leave rows or columns out. The n-th of `groups` equal parts of the outputs o sees the n-th of x's i.
    """
    if x.ndim == 3:
        return _lone(conv2d(_rows(x), _rows(w), stride=stride, pads=pads, dilation=dilation, groups=groups))
    padded = pad(x, pads, 0)
    size = count(padded.shape[2:], extents(w.shape[2:], dilation), stride)
    y = np.zeros((x.shape[0], w.shape[0], *size), x.dtype)
    for r, s in np.ndindex(*w.shape[2:]):
        met = tap(padded, r * dilation[0], s * dilation[1], size, stride)
        y += _join(np.einsum("bgihw,goi->bgohw", _groups(met, 1, groups), _groups(w[:, :, r, s], 0, groups)))
    return y


def conv2d_grad_input(
    dy: np.ndarray,
    w: np.ndarray,
    onto: np.ndarray | None = None,
    *,
    shape: tuple[int, ...],
    stride: Pair,
    pads: Pads,
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> np.ndarray:
    """Gradient of `conv2d` to its x [b,i,H,W] = `shape`, from dy [b,o,h,w]; zero where no window reads x.

    It is added to `onto` where that is given. Forms may multiply w by zeros where no window lies, too, which makes NaN
    of its infinities.
    """
    how: dict[str, Any] = {"stride": stride, "pads": pads, "dilation": dilation, "groups": groups}
    if dy.ndim == 3:
        there = None if onto is None else _rows(onto)
        return _lone(conv2d_grad_input(_rows(dy), _rows(w), there, shape=(*shape[:2], 1, shape[2]), **how))
    wide = pad(np.zeros(shape, dy.dtype), pads, 0)
    for r, s in np.ndindex(*w.shape[2:]):
        met = tap(wide, r * dilation[0], s * dilation[1], dy.shape[2:], stride)
        met += _join(np.einsum("bgohw,goi->bgihw", _groups(dy, 1, groups), _groups(w[:, :, r, s], 0, groups)))
    made = unpad(wide, pads, shape)
    return made if onto is None else made + onto


@castable
def conv2d_grad_weight(
    dy: np.ndarray,
    x: np.ndarray,
    *,
    kernel: tuple[int, ...],
    stride: Pair,
    pads: Pads,
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> np.ndarray:
    """Gradient of `conv2d` to its w [o,i/groups,r,s], (r, s) = `kernel`, from dy [b,o,h,w] and x [b,i,H,W].

    Forms may multiply x by zeros where no window lies, too, which makes NaN of its infinities.
    """
    how: dict[str, Any] = {"stride": stride, "pads": pads, "dilation": dilation, "groups": groups}
    if x.ndim == 3:
        return _lone(conv2d_grad_weight(_rows(dy), _rows(x), kernel=(1, *kernel), **how))
    padded = pad(x, pads, 0)
    dw = np.zeros((dy.shape[1], x.shape[1] // groups, *kernel), x.dtype)
    for r, s in np.ndindex(*kernel):
        met = _groups(tap(padded, r * dilation[0], s * dilation[1], dy.shape[2:], stride), 1, groups)
        dw[:, :, r, s] = np.einsum("bgohw,bgihw->goi", _groups(dy, 1, groups), met).reshape(dw.shape[:2])
    return dw


def _rows(x: np.ndarray) -> np.ndarray:
    return x[:, :, None]


def _lone(x: np.ndarray) -> np.ndarray:
    return x[:, :, 0]


def _groups(x: np.ndarray, dim: int, groups: int) -> np.ndarray:
    """The dim as two: groups, and what each holds."""
    return x.reshape(*x.shape[:dim], groups, x.shape[dim] // groups, *x.shape[dim + 1 :])


def _join(x: np.ndarray) -> np.ndarray:
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])

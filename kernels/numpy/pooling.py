"""Max pooling and its gradient, one pass over the windows.

It knows no convolution.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.form import prepares
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.views import chain, nothing, plane

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]


@prepares
def max_pool2d(
    out: np.ndarray, x: np.ndarray, *, kernel: Pair, stride: Pair, pads: Pads
) -> Callable[[], Any] | None:
    """See the definition."""
    return _work(_pool, out, x, x, kernel, stride, pads)


@prepares
def max_pool2d_grad(
    out: np.ndarray, dy: np.ndarray, x: np.ndarray, *, kernel: Pair, stride: Pair, pads: Pads, accumulate: bool
) -> Callable[[], Any] | None:
    """See the definition."""
    work = _work(_pool_grad, dy, x, out, kernel, stride, pads)
    return work if work is None or accumulate else chain([partial(out.fill, 0), work])


def _work(
    loop: Callable[..., Any],
    small: np.ndarray,
    large: np.ndarray,
    grad: np.ndarray,
    kernel: Pair,
    stride: Pair,
    pads: Pads,
) -> Callable[[], Any] | None:
    """`loop` over the windows: `small` has an element a window, `large` and `grad` are what the windows look at."""
    if small.size == 0:
        return nothing
    flats = [plane(x) for x in (small, large, grad)]
    if any(flat is None for flat in flats):
        return None
    steps = [tuple(step // x.itemsize for step in x.strides[:3]) for x in (small, large, grad)]
    return partial(loop, *flats, *steps, small.shape, large.shape[2:], kernel, stride, (pads[0], pads[2]))


@compiled
def _first_max(image, start, step, size, kernel, y, x):  # type: ignore[no-untyped-def]
    """Row and column of the first maximum (or first NaN) of the window at (y, x), -1 if it is all padding."""
    row, col = -1, -1
    best = image[start]
    for r in range(max(0, -y), min(kernel[0], size[0] - y)):
        for s in range(max(0, -x), min(kernel[1], size[1] - x)):
            value = image[start + (y + r) * step + x + s]
            if row < 0 or value > best or (value != value and best == best):
                row, col, best = y + r, x + s, value
    return row, col


@compiled
def _pool(y, x, _, step_y, step_x, __, shape, size, kernel, stride, pads):  # type: ignore[no-untyped-def]
    for b, c, h in np.ndindex(shape[0], shape[1], shape[2]):
        line = b * step_y[0] + c * step_y[1] + h * step_y[2]
        start = b * step_x[0] + c * step_x[1]
        for w in range(shape[3]):
            row, col = _first_max(x, start, step_x[2], size, kernel, h * stride[0] - pads[0], w * stride[1] - pads[1])
            y[line + w] = x[start + row * step_x[2] + col] if row >= 0 else -np.inf


@compiled
def _pool_grad(dy, x, dx, step_y, step_x, step_d, shape, size, kernel, stride, pads):  # type: ignore[no-untyped-def]
    for b, c, h in np.ndindex(shape[0], shape[1], shape[2]):
        line = b * step_y[0] + c * step_y[1] + h * step_y[2]
        start = b * step_x[0] + c * step_x[1]
        for w in range(shape[3]):
            row, col = _first_max(x, start, step_x[2], size, kernel, h * stride[0] - pads[0], w * stride[1] - pads[1])
            if row >= 0:
                dx[b * step_d[0] + c * step_d[1] + row * step_d[2] + col] += dy[line + w]

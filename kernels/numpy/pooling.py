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
def max_pool2d(out: np.ndarray, x: np.ndarray, *, kernel: Pair, stride: Pair, pads: Pads) -> Callable[[], Any] | None:
    """See the definition."""
    return _work(_pool, [out, x], kernel, stride, pads)


@prepares
def max_pool2d_grad(
    out: np.ndarray, dy: np.ndarray, x: np.ndarray, *, kernel: Pair, stride: Pair, pads: Pads, accumulate: bool
) -> Callable[[], Any] | None:
    """See the definition."""
    work = _work(_pool_grad, [dy, x, out], kernel, stride, pads)
    return work if work is None or accumulate else chain([partial(out.fill, 0), work])


def _work(
    loop: Callable[..., Any], arrays: list[np.ndarray], kernel: Pair, stride: Pair, pads: Pads
) -> Callable[[], Any] | None:
    """`loop` over the windows: the first array has an element a window, the others are what windows look at."""
    if arrays[0].size == 0:
        return nothing
    flats = [plane(x) for x in arrays]
    if any(flat is None for flat in flats):
        return None
    steps = [tuple(step // x.itemsize for step in x.strides[:3]) for x in arrays]
    shape, size = arrays[0].shape, arrays[1].shape[2:]
    return partial(loop, *flats, *steps, shape, size, tuple(kernel), tuple(stride), (pads[0], pads[2]))


# Both loops choose without branching: which of a window's elements is largest is anybody's guess, and a wrong guess of
# the processor costs more than the whole window.


@compiled
def _pool(y, x, step_y, step_x, shape, size, kernel, stride, pads):  # type: ignore[no-untyped-def]
    for b, c, h in np.ndindex(shape[0], shape[1], shape[2]):
        line = y[b * step_y[0] + c * step_y[1] + h * step_y[2] :][: shape[3]]
        top = h * stride[0] - pads[0]
        start = b * step_x[0] + c * step_x[1] + top * step_x[2]
        for w in range(shape[3]):
            left = w * stride[1] - pads[1]
            best = -np.inf
            for r in range(max(0, -top), min(kernel[0], size[0] - top)):
                for s in range(max(0, -left), min(kernel[1], size[1] - left)):
                    value = x[start + r * step_x[2] + left + s]
                    best = value if (value > best) | (value != value) else best
            line[w] = best


@compiled
def _pool_grad(dy, x, dx, step_y, step_x, step_d, shape, size, kernel, stride, pads):  # type: ignore[no-untyped-def]
    for b, c, h in np.ndindex(shape[0], shape[1], shape[2]):
        line = dy[b * step_y[0] + c * step_y[1] + h * step_y[2] :][: shape[3]]
        top = h * stride[0] - pads[0]
        start = b * step_x[0] + c * step_x[1] + top * step_x[2]
        target = b * step_d[0] + c * step_d[1] + top * step_d[2]
        for w in range(shape[3]):
            left = w * stride[1] - pads[1]
            best, place = -np.inf, -1
            for r in range(max(0, -top), min(kernel[0], size[0] - top)):
                for s in range(max(0, -left), min(kernel[1], size[1] - left)):
                    value = x[start + r * step_x[2] + left + s]
                    better = (value > best) | ((value != value) & (best == best))
                    best = value if better else best
                    place = target + r * step_d[2] + left + s if better else place
            if place >= 0:
                dx[place] += line[w]

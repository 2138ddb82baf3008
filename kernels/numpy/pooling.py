"""Maxima and means over windows and over all places, and their gradients, one pass over the windows.

It knows no convolution.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.calls import nothing
from castile.kernels.form import prepares
from castile.kernels.numpy.channels import channels
from castile.kernels.numpy.jit import compiled, f32, inlined
from castile.kernels.numpy.lanes import after, pointer
from castile.kernels.numpy.moving import onto_zeros
from castile.kernels.numpy.views import even, in_rows, span, steps_of

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
    return onto_zeros(_work(_pool_grad, [dy, x, out], kernel, stride, pads), accumulate, out)


@prepares
def avg_pool2d(
    out: np.ndarray, x: np.ndarray, *, kernel: Pair, stride: Pair, pads: Pads, padded: bool
) -> Callable[[], Any] | None:
    """See the definition."""
    return _work(_average, [out, x], kernel, stride, pads, padded)


@prepares
def avg_pool2d_grad(
    out: np.ndarray,
    dy: np.ndarray,
    *,
    shape: tuple[int, ...],
    kernel: Pair,
    stride: Pair,
    pads: Pads,
    padded: bool,
    accumulate: bool,
) -> Callable[[], Any] | None:
    """See the definition."""
    return onto_zeros(_work(_average_grad, [dy, out], kernel, stride, pads, padded), accumulate, out)


@prepares
def global_pool(out: np.ndarray, x: np.ndarray, *, scale: float, accumulate: bool) -> Callable[[], Any] | None:
    """See the definition."""
    return _over_channels(_channel_sums, x, out, x.dtype.type(scale), accumulate)


@prepares
def global_pool_grad(
    out: np.ndarray, dy: np.ndarray, *, shape: tuple[int, ...], scale: float, accumulate: bool
) -> Callable[[], Any] | None:
    """See the definition."""
    return _over_channels(_channel_spread, out, dy, dy.dtype.type(scale), accumulate)


def _over_channels(loop: Callable[..., Any], x: np.ndarray, few: np.ndarray, *how: Any) -> Callable[[], Any] | None:
    """`loop` over x [b,c,...] and a number [b,c] a channel; None where x's rows do not lie dense."""
    if few.size == 0:
        return nothing
    places, ones = channels(x), channels(few)
    if places is None or ones is None:
        return None
    return partial(loop, *places.flats, *ones.flats, *places.steps, *ones.steps, places.shape, *how)


def _work(
    loop: Callable[..., Any], arrays: list[np.ndarray], kernel: Pair, stride: Pair, pads: Pads, *how: Any
) -> Callable[[], Any] | None:
    """`loop` over the windows: the first array has an element a window, the others are what windows look at."""
    if arrays[0].size == 0:
        return nothing
    if not (even(*arrays) and in_rows(*arrays)):
        return None
    lain = [*map(span, arrays), *(steps_of(x)[:3] for x in arrays)]
    shape, size = arrays[0].shape, arrays[1].shape[2:]
    return partial(loop, *lain, shape, size, tuple(kernel), tuple(stride), (pads[0], pads[2]), *how)


# The loops choose without branching: which of a window's elements is largest is anybody's guess, and a wrong guess of
# the processor costs more than the whole window.


@compiled
def _pool(y, x, step_y, step_x, shape, size, kernel, stride, pads):  # type: ignore[no-untyped-def]
    p_y, p_x = pointer(y), pointer(x)
    square = kernel[0] == 2 and kernel[1] == 2
    for b, c, h in np.ndindex(shape[0], shape[1], shape[2]):
        line = after(p_y, b * step_y[0] + c * step_y[1] + h * step_y[2])
        top = h * stride[0] - pads[0]
        start = after(p_x, b * step_x[0] + c * step_x[1] + top * step_x[2])
        inside = square and top >= 0 and top + 2 <= size[0]
        for w in range(shape[3]):
            left = w * stride[1] - pads[1]
            if inside and left >= 0 and left + 2 <= size[1]:
                upper, lower = after(start, left), after(start, left + step_x[2])
                line[w] = _larger(_larger(upper[0], upper[1]), _larger(lower[0], lower[1]))
                continue
            best = -np.inf
            for r in range(max(0, -top), min(kernel[0], size[0] - top)):
                for s in range(max(0, -left), min(kernel[1], size[1] - left)):
                    best = _larger(best, start[r * step_x[2] + left + s])
            line[w] = best


@compiled
def _pool_grad(dy, x, dx, step_y, step_x, step_d, shape, size, kernel, stride, pads):  # type: ignore[no-untyped-def]
    p_y, p_x, p_d = pointer(dy), pointer(x), pointer(dx)
    square = kernel[0] == 2 and kernel[1] == 2
    for b, c, h in np.ndindex(shape[0], shape[1], shape[2]):
        line = after(p_y, b * step_y[0] + c * step_y[1] + h * step_y[2])
        top = h * stride[0] - pads[0]
        start = after(p_x, b * step_x[0] + c * step_x[1] + top * step_x[2])
        target = after(p_d, b * step_d[0] + c * step_d[1] + top * step_d[2])
        inside = square and top >= 0 and top + 2 <= size[0]
        for w in range(shape[3]):
            left = w * stride[1] - pads[1]
            if inside and left >= 0 and left + 2 <= size[1]:
                upper, lower = after(start, left), after(start, left + step_x[2])
                right, right_below = _beats(upper[1], upper[0]), _beats(lower[1], lower[0])
                below = _beats(lower[right_below], upper[right])
                target[left + (step_d[2] + right_below if below else right)] += line[w]
                continue
            # where all is -inf the first element is the maximum; padding, if the window begins in it, takes nothing
            best, place = -np.inf, left if top >= 0 and left >= 0 else -1
            for r in range(max(0, -top), min(kernel[0], size[0] - top)):
                for s in range(max(0, -left), min(kernel[1], size[1] - left)):
                    value = start[r * step_x[2] + left + s]
                    better = _beats(value, best)
                    best = value if better else best
                    place = r * step_d[2] + left + s if better else place
            if place >= 0:
                target[place] += line[w]


@inlined
def _larger(a, b):  # type: ignore[no-untyped-def]
    return b if (b > a) | (b != b) else a


@inlined
def _beats(later, earlier):  # type: ignore[no-untyped-def]
    """1 if `later` takes the place of `earlier` as a window's first maximum, which the first NaN is, else 0."""
    return np.intp((later > earlier) | ((later != later) & (earlier == earlier)))


@compiled
def _average(y, x, step_y, step_x, shape, size, kernel, stride, pads, padded):  # type: ignore[no-untyped-def]
    p_y, p_x = pointer(y), pointer(x)
    for b, c, h in np.ndindex(shape[0], shape[1], shape[2]):
        line = after(p_y, b * step_y[0] + c * step_y[1] + h * step_y[2])
        top = h * stride[0] - pads[0]
        start = after(p_x, b * step_x[0] + c * step_x[1] + top * step_x[2])
        first, last = max(0, -top), min(kernel[0], size[0] - top)
        for w in range(shape[3]):
            left = w * stride[1] - pads[1]
            low, high = max(0, -left), min(kernel[1], size[1] - left)
            total = f32(0)
            for r in range(first, last):
                for s in range(low, high):
                    total += start[r * step_x[2] + left + s]
            line[w] = total / _counted(first, last, low, high, kernel, padded)


@compiled
def _average_grad(dy, dx, step_y, step_d, shape, size, kernel, stride, pads, padded):  # type: ignore[no-untyped-def]
    p_y, p_d = pointer(dy), pointer(dx)
    for b, c, h in np.ndindex(shape[0], shape[1], shape[2]):
        line = after(p_y, b * step_y[0] + c * step_y[1] + h * step_y[2])
        top = h * stride[0] - pads[0]
        start = after(p_d, b * step_d[0] + c * step_d[1] + top * step_d[2])
        first, last = max(0, -top), min(kernel[0], size[0] - top)
        for w in range(shape[3]):
            left = w * stride[1] - pads[1]
            low, high = max(0, -left), min(kernel[1], size[1] - left)
            share = line[w] / _counted(first, last, low, high, kernel, padded)
            for r in range(first, last):
                for s in range(low, high):
                    start[r * step_d[2] + left + s] += share


@inlined
def _counted(first, last, low, high, kernel, padded):  # type: ignore[no-untyped-def]
    return kernel[0] * kernel[1] if padded else (last - first) * (high - low)


@compiled
def _channel_sums(x, out, steps, to, shape, scale, adds):  # type: ignore[no-untyped-def]
    p_x, p_out = pointer(x), pointer(out)
    for b, c in np.ndindex(shape[0], shape[1]):
        total = f32(0)
        for h in range(shape[2]):
            row = after(p_x, b * steps[0] + c * steps[1] + h * steps[2])
            for w in range(shape[3]):
                total += row[w]
        place = b * to[0] + c * to[1]
        p_out[place] = p_out[place] + total * scale if adds else total * scale


@compiled
def _channel_spread(out, dy, steps, of, shape, scale, adds):  # type: ignore[no-untyped-def]
    p_out, p_dy = pointer(out), pointer(dy)
    for b, c, h in np.ndindex(shape[0], shape[1], shape[2]):
        row, value = after(p_out, b * steps[0] + c * steps[1] + h * steps[2]), p_dy[b * of[0] + c * of[1]] * scale
        for w in range(shape[3]):
            row[w] = row[w] + value if adds else value

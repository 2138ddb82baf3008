"""Max, average and global pooling and their gradients, one pass over the windows.

It knows no convolution.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.calls import nothing
from castile.kernels.form import prepares
from castile.kernels.numpy.channels import channels
from castile.kernels.numpy.copying import onto_zeros
from castile.kernels.numpy.jit import compiled, f32, inlined
from castile.kernels.numpy.pointers import after, pointer
from castile.kernels.numpy.views import element_strides, has_contiguous_rows, is_forward, span

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
    if not (is_forward(*arrays) and has_contiguous_rows(*arrays)):
        return None
    lain = [*map(span, arrays), *(element_strides(x)[:3] for x in arrays)]
    shape, size = arrays[0].shape, arrays[1].shape[2:]
    return partial(loop, *lain, shape, size, tuple(kernel), tuple(stride), (pads[0], pads[2]), *how)


# The loops choose without branching: which of a window's elements is largest is anybody's guess, and a wrong guess of
# the processor costs more than the whole window. Whole windows of usual sizes are written out, as the compiler then
# knows how often their loops turn, and works on several windows at once.


@compiled
def _pool(y, x, step_y, step_x, shape, size, kernel, stride, pads):  # type: ignore[no-untyped-def]
    p_y, p_x, lowest = pointer(y), pointer(x), x.dtype.type(-np.inf)
    begin, end = _whole(size[1], kernel[1], stride[1], pads[1])
    for b, c, h in np.ndindex(shape[0], shape[1], shape[2]):
        line = after(p_y, b * step_y[0] + c * step_y[1] + h * step_y[2])
        top = h * stride[0] - pads[0]
        start, row = after(p_x, b * step_x[0] + c * step_x[1] + top * step_x[2]), step_x[2]
        usual = _usual(top, size, kernel)
        if usual == 2 and stride[1] == 2 and pads[1] == 0 and end >= shape[3]:
            _largest_of_squares(line, start, after(start, row), shape[3])
            continue
        for w in range(shape[3]):
            left = w * stride[1] - pads[1]
            seen, side = after(start, left), usual if begin <= w < end else 0
            if side == 2:
                line[w] = _largest(seen, row, (0, 2, 0, 2), lowest)
            elif side == 3:
                line[w] = _largest(seen, row, (0, 3, 0, 3), lowest)
            else:
                line[w] = _largest(seen, row, _there(top, left, size, kernel), lowest)


@compiled
def _pool_grad(dy, x, dx, step_y, step_x, step_d, shape, size, kernel, stride, pads):  # type: ignore[no-untyped-def]
    p_y, p_x, p_d, lowest = pointer(dy), pointer(x), pointer(dx), x.dtype.type(-np.inf)
    begin, end = _whole(size[1], kernel[1], stride[1], pads[1])
    for b, c, h in np.ndindex(shape[0], shape[1], shape[2]):
        line = after(p_y, b * step_y[0] + c * step_y[1] + h * step_y[2])
        top = h * stride[0] - pads[0]
        start, row = after(p_x, b * step_x[0] + c * step_x[1] + top * step_x[2]), step_x[2]
        target, to_row = after(p_d, b * step_d[0] + c * step_d[1] + top * step_d[2]), step_d[2]
        usual = _usual(top, size, kernel)
        for w in range(shape[3]):
            left = w * stride[1] - pads[1]
            seen, side = after(start, left), usual if begin <= w < end else 0
            if side == 2:
                place = _first_largest(seen, row, to_row, (0, 2, 0, 2), lowest)
            elif side == 3:
                place = _first_largest(seen, row, to_row, (0, 3, 0, 3), lowest)
            else:
                there = _there(top, left, size, kernel)
                place = _first_largest(seen, row, to_row, there, lowest)
                # where nothing is larger than padding, and it begins in padding, a window's maximum is there
                inside = 0 <= top < size[0] and 0 <= left < size[1]
                if not inside and _largest(seen, row, there, lowest) == lowest:
                    continue
            target[left + place] += line[w]


@inlined
def _larger(a, b):  # type: ignore[no-untyped-def]
    return b if (b > a) | (b != b) else a


@inlined
def _largest_of_squares(out, x, below, num):  # type: ignore[no-untyped-def]
    """Of squares of two rows that lie side by side: the compiler works on a vector of them at once."""
    for w in range(num):
        out[w] = _larger(_larger(_larger(x[2 * w], x[2 * w + 1]), below[2 * w]), below[2 * w + 1])


@inlined
def _usual(top, size, kernel):  # type: ignore[no-untyped-def]
    """Rows, and as many columns, of windows that begin at row `top`; 0 where some rows do not lie in the image."""
    return kernel[0] if kernel[0] == kernel[1] and top >= 0 and top + kernel[0] <= size[0] else 0


@inlined
def _whole(size, kernel, stride, pad):  # type: ignore[no-untyped-def]
    """From which to which of a row's windows all columns lie in the image."""
    return -(-pad // stride), (size + pad - kernel) // stride + 1


@inlined
def _there(top, left, size, kernel):  # type: ignore[no-untyped-def]
    """Rows from which to which of a window, and columns, lie in the image."""
    return max(0, -top), min(kernel[0], size[0] - top), max(0, -left), min(kernel[1], size[1] - left)


@inlined
def _largest(x, step, there, lowest):  # type: ignore[no-untyped-def]
    """The largest element of a window, NaN if one is NaN; `lowest`, which is -inf, if it has none."""
    best = lowest
    for r in range(there[0], there[1]):
        for s in range(there[2], there[3]):
            value = x[r * step + s]
            best = value if (value > best) | (value != value) else best
    return best


@inlined
def _first_largest(x, step, to, there, lowest):  # type: ignore[no-untyped-def]
    """Where the first of a window's largest elements, or of its NaNs, lies in rows that are `to` apart."""
    best, place = _largest(x, step, there, lowest), 0
    # No choice waits for the one before, as all look for what is known.
    for r in range(there[1] - 1, there[0] - 1, -1):
        for s in range(there[3] - 1, there[2] - 1, -1):
            value = x[r * step + s]
            if best == best:
                place = place if value < best else r * to + s
            else:
                place = place if value == value else r * to + s
    return place


@compiled
def _average(y, x, step_y, step_x, shape, size, kernel, stride, pads, padded):  # type: ignore[no-untyped-def]
    p_y, p_x, zero = pointer(y), pointer(x), x.dtype.type(0)
    begin, end = _whole(size[1], kernel[1], stride[1], pads[1])
    for b, c, h in np.ndindex(shape[0], shape[1], shape[2]):
        line = after(p_y, b * step_y[0] + c * step_y[1] + h * step_y[2])
        top = h * stride[0] - pads[0]
        start, row = after(p_x, b * step_x[0] + c * step_x[1] + top * step_x[2]), step_x[2]
        usual = _usual(top, size, kernel)
        for w in range(shape[3]):
            left = w * stride[1] - pads[1]
            seen, side = after(start, left), usual if begin <= w < end else 0
            if side == 2:
                line[w] = _total(seen, row, (0, 2, 0, 2), zero) / 4
            elif side == 3:
                line[w] = _total(seen, row, (0, 3, 0, 3), zero) / 9
            else:
                there = _there(top, left, size, kernel)
                line[w] = _total(seen, row, there, zero) / _counted(there, kernel, padded)


@inlined
def _total(x, step, there, zero):  # type: ignore[no-untyped-def]
    total = zero
    for r in range(there[0], there[1]):
        for s in range(there[2], there[3]):
            total += x[r * step + s]
    return total


@compiled
def _average_grad(dy, dx, step_y, step_d, shape, size, kernel, stride, pads, padded):  # type: ignore[no-untyped-def]
    p_y, p_d = pointer(dy), pointer(dx)
    begin, end = _whole(size[1], kernel[1], stride[1], pads[1])
    for b, c, h in np.ndindex(shape[0], shape[1], shape[2]):
        line = after(p_y, b * step_y[0] + c * step_y[1] + h * step_y[2])
        top = h * stride[0] - pads[0]
        start, row = after(p_d, b * step_d[0] + c * step_d[1] + top * step_d[2]), step_d[2]
        usual = _usual(top, size, kernel)
        for w in range(shape[3]):
            left = w * stride[1] - pads[1]
            target, side = after(start, left), usual if begin <= w < end else 0
            if side == 2:
                _share(target, row, (0, 2, 0, 2), line[w] / 4)
            elif side == 3:
                _share(target, row, (0, 3, 0, 3), line[w] / 9)
            else:
                there = _there(top, left, size, kernel)
                _share(target, row, there, line[w] / _counted(there, kernel, padded))


@inlined
def _share(x, step, there, share):  # type: ignore[no-untyped-def]
    for r in range(there[0], there[1]):
        for s in range(there[2], there[3]):
            x[r * step + s] += share


@inlined
def _counted(there, kernel, padded):  # type: ignore[no-untyped-def]
    return kernel[0] * kernel[1] if padded else (there[1] - there[0]) * (there[3] - there[2])


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

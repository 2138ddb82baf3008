"""Maxima and means over windows and over all places, and their gradients: each result looks up what it is made of.

The maximum of a window is looked for once, and its number in the window kept until the gradient has been gathered. It
knows no convolution.
"""

# mypy: disable-error-code="no-untyped-def"

from math import prod
from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.launch import Launch, Plan, Room, planned, takes
from castile.kernels.triton.lines import each, folded, packed, text
from castile.kernels.triton.views import View, power_of_two, view, wide
from castile.kernels.windows import Pads, Pair

_SCALED = text("x -> scale * x", "scale")
# Programs of so many results, of so many warps.
_BLOCKS = ((512, 4), (1024, 4), (256, 4), (1024, 8))


@planned
def max_pool2d(out: Any, x: Any, *, kernel: Pair, stride: Pair, pads: Pads) -> Plan | None:
    """See the definition."""
    if not takes(out, x):
        return None

    def launches(block: int, warps: int) -> list[Launch]:
        return [_pooled(_max_pool, view(out), x, kernel, stride, pads, block, warps, {})]

    return _plan(launches, out)


@planned
def max_pool2d_grad(
    out: Any, dy: Any, x: Any, *, kernel: Pair, stride: Pair, pads: Pads, accumulate: bool
) -> Plan | None:
    """See the definition."""
    if not takes(out, dy, x) or dy.size == 0:
        return None
    shape = tuple(dy.shape)
    first = View(Room(dy.size, "int16" if prod(kernel) < 2**15 else "int32"), shape, packed(shape))

    def launches(block: int, warps: int) -> list[Launch]:
        found = _pooled(_first_maximum, first, x, kernel, stride, pads, block, warps, {})
        return [found, _spread(_max_spread, out, dy, [first], kernel, stride, pads, block, warps, {"ADDS": accumulate})]

    return _plan(launches, out)


@planned
def avg_pool2d(out: Any, x: Any, *, kernel: Pair, stride: Pair, pads: Pads, padded: bool) -> Plan | None:
    """See the definition. Sums are in float32."""
    if not takes(out, x):
        return None

    def launches(block: int, warps: int) -> list[Launch]:
        return [_pooled(_mean, view(out), x, kernel, stride, pads, block, warps, {"ALL": padded})]

    return _plan(launches, out)


@planned
def avg_pool2d_grad(
    out: Any,
    dy: Any,
    *,
    shape: tuple[int, ...],
    kernel: Pair,
    stride: Pair,
    pads: Pads,
    padded: bool,
    accumulate: bool,
) -> Plan | None:
    """See the definition. Sums are in float32."""
    if not takes(out, dy) or dy.size == 0:
        return None

    how = {"ALL": padded, "ADDS": accumulate}

    def launches(block: int, warps: int) -> list[Launch]:
        return [_spread(_mean_spread, out, dy, [], kernel, stride, pads, block, warps, how)]

    return _plan(launches, out)


@planned
def global_pool(out: Any, x: Any, *, scale: float, accumulate: bool) -> Plan | None:
    """See the definition. Sums are in float32."""
    if not takes(out, x):
        return None
    if x.ndim == 2:
        return each(_SCALED, [view(out)], [view(x)], {"scale": scale}, accumulate)
    return folded(_SCALED, [view(out)], [view(x)], tuple(range(2, x.ndim)), {"scale": scale}, adds=accumulate)


@planned
def global_pool_grad(out: Any, dy: Any, *, shape: tuple[int, ...], scale: float, accumulate: bool) -> Plan | None:
    """See the definition."""
    if not takes(out, dy):
        return None
    everywhere = View(dy, tuple(shape), (*view(dy).steps, *[0] * (len(shape) - 2)))
    return each(_SCALED, [view(out)], [everywhere], {"scale": scale}, accumulate)


def _plan(launches: Any, out: Any) -> Plan:
    if out.size == 0:
        return Plan((None,), lambda _: [])
    most = power_of_two(out.size)
    settings = dict.fromkeys((min(block, most), warps if block <= most else 1) for block, warps in _BLOCKS)
    return Plan(tuple(settings), lambda setting: launches(*setting))


def _pooled(
    pooling: Any,
    out: View,
    x: Any,
    kernel: Pair,
    stride: Pair,
    pads: Pads,
    block: int,
    warps: int,
    how: dict[str, bool],
) -> Launch:
    """The launch of results of windows over x [b,c,H,W], each of which is told by what its window meets."""
    seen = view(x)
    args = (out, out.steps, seen, seen.steps, out.shape, seen.shape[2:], stride, (pads[0], pads[2]), prod(out.shape))
    constants = _constants(kernel, [out, seen], block) | how
    flops = prod(out.shape) * prod(kernel)
    return Launch(pooling, (-(-prod(out.shape) // block),), args, constants, warps, flops=flops)


def _spread(
    spread: Any,
    out: Any,
    dy: Any,
    more: list[View],
    kernel: Pair,
    stride: Pair,
    pads: Pads,
    block: int,
    warps: int,
    how: dict[str, bool],
) -> Launch:
    """The launch of the gradient [b,c,H,W] of windows that gave dy: each place looks up the windows that it is in."""
    to, of = view(out), view(dy)
    operands = [part for one in (to, of, *more) for part in (one, one.steps)]
    args = (*operands, to.shape, of.shape[2:], stride, (pads[0], pads[2]), out.size)
    constants = _constants(kernel, [to, of], block) | how
    # A row is in so many windows at most.
    across = {f"{name}_WINDOWS": -(-n // step) for name, n, step in zip("RS", kernel, stride, strict=True)}
    flops = out.size * prod(across.values())
    return Launch(spread, (-(-out.size // block),), args, constants | across, warps, flops=flops)


def _constants(kernel: Pair, views: list[View], block: int) -> dict[str, Any]:
    return {"R": kernel[0], "S": kernel[1], "BLOCK": block, "WIDE": wide(views)}


@triton.jit
def _where(shape, num, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Of a program's places of an array of four dims: which there are, and of each the number in each dim."""
    n = tl.program_id(0)
    if WIDE:
        n = n.to(tl.int64)
    n = n * BLOCK + tl.arange(0, BLOCK)
    image = n // (shape[2] * shape[3])
    return n < num, image // shape[1], image % shape[1], n // shape[3] % shape[2], n % shape[3]


@triton.jit
def _met(x, steps, row, col, size, here, other: tl.constexpr):
    """Elements of images in float32, `other` outside."""
    inside = here & (row >= 0) & (row < size[0]) & (col >= 0) & (col < size[1])
    return tl.load(x + row * steps[2] + col * steps[3], mask=inside, other=other).to(tl.float32)


@triton.jit
def _max_pool(out, o_steps, x, x_steps, shape, size, stride, pads, num, R: tl.constexpr, S: tl.constexpr,
              BLOCK: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    here, b, c, h, v = _where(shape, num, BLOCK, WIDE)
    x += b * x_steps[0] + c * x_steps[1]
    row, col = h * stride[0] - pads[0], v * stride[1] - pads[1]
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    for tap in range(R * S):
        value = _met(x, x_steps, row + tap // S, col + tap % S, size, here, float("-inf"))
        best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    at = out + b * o_steps[0] + c * o_steps[1] + h * o_steps[2] + v * o_steps[3]
    tl.store(at, best.to(out.dtype.element_ty), mask=here)


@triton.jit
def _first_maximum(out, o_steps, x, x_steps, shape, size, stride, pads, num, R: tl.constexpr, S: tl.constexpr,
                   BLOCK: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    here, b, c, h, v = _where(shape, num, BLOCK, WIDE)
    x += b * x_steps[0] + c * x_steps[1]
    row, col = h * stride[0] - pads[0], v * stride[1] - pads[1]
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    # Where all is -inf the first element is the maximum, be it padding or not; the first NaN is larger than all.
    first = tl.zeros((BLOCK,), tl.int32)
    for tap in range(R * S):
        value = _met(x, x_steps, row + tap // S, col + tap % S, size, here, float("-inf"))
        better = (value > best) | ((value != value) & (best == best))
        best, first = tl.where(better, value, best), tl.where(better, tap, first)
    at = out + b * o_steps[0] + c * o_steps[1] + h * o_steps[2] + v * o_steps[3]
    tl.store(at, first.to(out.dtype.element_ty), mask=here)


@triton.jit
def _mean(out, o_steps, x, x_steps, shape, size, stride, pads, num, ALL: tl.constexpr, R: tl.constexpr,
          S: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    here, b, c, h, v = _where(shape, num, BLOCK, WIDE)
    x += b * x_steps[0] + c * x_steps[1]
    row, col = h * stride[0] - pads[0], v * stride[1] - pads[1]
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in range(R * S):
        value = _met(x, x_steps, row + tap // S, col + tap % S, size, here, 0.0)
        total += value
    at = out + b * o_steps[0] + c * o_steps[1] + h * o_steps[2] + v * o_steps[3]
    total /= _counted(row, col, size, ALL, R, S)
    tl.store(at, total.to(out.dtype.element_ty), mask=here)


@triton.jit
def _counted(row, col, size, ALL: tl.constexpr, R: tl.constexpr, S: tl.constexpr):
    """Elements that the mean of a window is of, which begins at row and col."""
    down = tl.minimum(row + R, size[0]) - tl.maximum(row, 0)
    along = tl.minimum(col + S, size[1]) - tl.maximum(col, 0)
    met = tl.maximum(down, 0) * tl.maximum(along, 0)
    return (met * 0 + R * S if ALL else met).to(tl.float32)


@triton.jit
def _windows_of(place, pad, stride, number, num, TAPS: tl.constexpr):
    """The `number`-th window from the last on that a row or column is in, where in it, and whether there is one."""
    window = tl.maximum(place + pad, 0) // stride - number
    tap = place + pad - window * stride
    return window, tap, (window >= 0) & (window < num) & (tap >= 0) & (tap < TAPS)


@triton.jit
def _max_spread(out, o_steps, dy, y_steps, first, f_steps, shape, size, stride, pads, num, R: tl.constexpr,
                S: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, ADDS: tl.constexpr,
                R_WINDOWS: tl.constexpr, S_WINDOWS: tl.constexpr):  # fmt: skip
    here, b, c, h, v = _where(shape, num, BLOCK, WIDE)
    dy += b * y_steps[0] + c * y_steps[1]
    first += b * f_steps[0] + c * f_steps[1]
    total = tl.zeros((BLOCK,), tl.float32)
    for number in range(R_WINDOWS * S_WINDOWS):
        row, i, in_row = _windows_of(h, pads[0], stride[0], number // S_WINDOWS, size[0], R)
        col, j, in_col = _windows_of(v, pads[1], stride[1], number % S_WINDOWS, size[1], S)
        mask = here & in_row & in_col
        taken = tl.load(first + row * f_steps[2] + col * f_steps[3], mask=mask, other=-1).to(tl.int32)
        mask = mask & (taken == i * S + j)
        total += tl.load(dy + row * y_steps[2] + col * y_steps[3], mask=mask, other=0.0).to(tl.float32)
    at = out + b * o_steps[0] + c * o_steps[1] + h * o_steps[2] + v * o_steps[3]
    if ADDS:
        total += tl.load(at, mask=here, other=0.0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=here)


@triton.jit
def _mean_spread(out, o_steps, dy, y_steps, shape, size, stride, pads, num, ALL: tl.constexpr, R: tl.constexpr,
                 S: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, ADDS: tl.constexpr,
                 R_WINDOWS: tl.constexpr, S_WINDOWS: tl.constexpr):  # fmt: skip
    here, b, c, h, v = _where(shape, num, BLOCK, WIDE)
    dy += b * y_steps[0] + c * y_steps[1]
    total = tl.zeros((BLOCK,), tl.float32)
    for number in range(R_WINDOWS * S_WINDOWS):
        row, _, in_row = _windows_of(h, pads[0], stride[0], number // S_WINDOWS, size[0], R)
        col, _, in_col = _windows_of(v, pads[1], stride[1], number % S_WINDOWS, size[1], S)
        mask = here & in_row & in_col
        value = tl.load(dy + row * y_steps[2] + col * y_steps[3], mask=mask, other=0.0).to(tl.float32)
        count = _counted(row * stride[0] - pads[0], col * stride[1] - pads[1], shape[2:], ALL, R, S)
        total += tl.where(mask, value / count, 0.0)
    at = out + b * o_steps[0] + c * o_steps[1] + h * o_steps[2] + v * o_steps[3]
    if ADDS:
        total += tl.load(at, mask=here, other=0.0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=here)

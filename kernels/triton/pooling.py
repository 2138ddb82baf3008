"""Maxima and means over windows and over all places, and their gradients: each result looks up what it is made of.

The maximum of a window is looked for once, and its number in the window kept until the gradient has been gathered. It
knows no convolution.
"""

# mypy: disable-error-code="no-untyped-def, assignment"

from collections.abc import Callable
from math import prod
from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.launch import Launch, Plan, Room, planned, takes
from castile.kernels.triton.lines import each, folded, packed, text
from castile.kernels.triton.planes import block, first_column, met, offset, put, tile, warps, within
from castile.kernels.triton.views import View, view, wide
from castile.kernels.windows import Pads, Pair

_SCALED = text("x -> scale * x", "scale")
# Elements of a window up to which a loop over them is written out.
_MOST_WRITTEN_OUT = 64
# Programs of so many places, each of which has a thread.
_THREADS = (256, 128, 512)


@planned
def max_pool2d(out: Any, x: Any, *, kernel: Pair, stride: Pair, pads: Pads) -> Plan | None:
    """See the definition."""
    if not takes(out, x):
        return None

    def launches(threads: int) -> list[Launch]:
        return [_pooled(_max_pool, view(out), x, kernel, stride, pads, threads, {})]

    return _plan(launches, out)


@planned
def max_pool2d_grad(
    out: Any, dy: Any, x: Any, *, kernel: Pair, stride: Pair, pads: Pads, accumulate: bool
) -> Plan | None:
    """See the definition."""
    if not takes(out, dy, x) or dy.size == 0:
        return None
    shape = tuple(dy.shape)
    how = {"F_STEPS": packed(tuple(dy.shape)), "ADDS": accumulate}
    first = View(Room(dy.size, "int8" if prod(kernel) < 2**7 else "int32"), shape, packed(shape))

    def launches(threads: int) -> list[Launch]:
        found = _pooled(_first_maximum, first, x, kernel, stride, pads, threads, {})
        return [found, _spread(_max_spread, out, dy, [first], kernel, stride, pads, threads, how)]

    return _plan(launches, out)


@planned
def avg_pool2d(out: Any, x: Any, *, kernel: Pair, stride: Pair, pads: Pads, padded: bool) -> Plan | None:
    """See the definition. Sums are in float32."""
    if not takes(out, x):
        return None

    def launches(threads: int) -> list[Launch]:
        return [_pooled(_mean, view(out), x, kernel, stride, pads, threads, {"ALL": padded})]

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

    def launches(threads: int) -> list[Launch]:
        return [_spread(_mean_spread, out, dy, [], kernel, stride, pads, threads, how)]

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


def _plan(launches: Callable[[int], list[Launch]], out: Any) -> Plan:
    return Plan(_THREADS, launches) if out.size else Plan((None,), lambda _: [])


def _pooled(
    pooling: Any, out: View, x: Any, kernel: Pair, stride: Pair, pads: Pads, threads: int, how: dict[str, bool]
) -> Launch:
    """The launch of results of windows over x [b,c,H,W], each of which is told by what its window meets."""
    seen = view(x)
    rows = prod(out.shape[:3])
    across = block(threads, rows, out.shape[3])
    constants = {
        "SHAPE": out.shape,
        "O_STEPS": out.steps,
        "X_STEPS": seen.steps,
        "SIZE": seen.shape[2:],
        "KERNEL": tuple(kernel),
        "STRIDE": tuple(stride),
        "PADS": (pads[0], pads[2]),
        "TAPS": prod(kernel),
        "UNROLL": min(prod(kernel), _MOST_WRITTEN_OUT),
        "ROWS": across[0],
        "COLS": across[1],
        "WIDE": wide([out, seen]),
    }
    grid = (-(-rows // across[0]) * -(-out.shape[3] // across[1]),)
    return Launch(pooling, grid, (out, seen), constants | how, warps(across), flops=prod(out.shape) * prod(kernel))


def _spread(
    spread: Any, out: Any, dy: Any, more: list[View], kernel: Pair, stride: Pair, pads: Pads, threads: int,
    how: dict[str, Any],
) -> Launch:  # fmt: skip
    """The launch of the gradient [b,c,H,W] of windows that gave dy: each place looks up the windows that it is in."""
    to, of = view(out), view(dy)
    lattice = tuple(-(-n // step) for n, step in zip(to.shape[2:], stride, strict=True))
    rows = prod(to.shape[:2]) * lattice[0]
    across = block(threads, rows, lattice[1])
    constants = {
        "SHAPE": (*to.shape[:2], *lattice),
        "SIZE": to.shape[2:],
        "O_STEPS": to.steps,
        "Y_STEPS": of.steps,
        "Y_SIZE": of.shape[2:],
        "KERNEL": tuple(kernel),
        "STRIDE": tuple(stride),
        "PADS": (pads[0], pads[2]),
        "ROWS": across[0],
        "COLS": across[1],
        "WIDE": wide([to, of]),
    }
    grid = (-(-rows // across[0]) * -(-lattice[1] // across[1]),)
    # Each element of a window is of use to one place.
    return Launch(spread, grid, (to, of, *more), constants | how, warps(across), flops=prod(of.shape) * prod(kernel))


@triton.jit
def _max_pool(out, x, SHAPE: tl.constexpr, O_STEPS: tl.constexpr, X_STEPS: tl.constexpr, SIZE: tl.constexpr,
              KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, TAPS: tl.constexpr,
              UNROLL: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    b, c, h, v, rows = tile(SHAPE, ROWS, COLS, WIDE)
    row, col = h * STRIDE[0] - PADS[0], v * STRIDE[1] - PADS[1]
    x += offset(b, c, row, col, X_STEPS)
    best = tl.full((ROWS, COLS), float("-inf"), tl.float32)
    for tap in tl.range(0, TAPS, loop_unroll_factor=UNROLL):
        i, j = tap // KERNEL[1], tap % KERNEL[1]
        mask = within(rows, row + i, col + j, SIZE)
        value = tl.load(x + (i * X_STEPS[2] + j * X_STEPS[3]), mask=mask, other=float("-inf"))
        best = tl.maximum(best, value.to(tl.float32), propagate_nan=tl.PropagateNan.ALL)
    tl.store(
        out + offset(b, c, h, v, O_STEPS), best.to(out.dtype.element_ty), mask=rows[:, None] & (v < SHAPE[3])[None, :]
    )


@triton.jit
def _first_maximum(out, x, SHAPE: tl.constexpr, O_STEPS: tl.constexpr, X_STEPS: tl.constexpr, SIZE: tl.constexpr,
                   KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, TAPS: tl.constexpr,
                   UNROLL: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    b, c, h, v, rows = tile(SHAPE, ROWS, COLS, WIDE)
    row, col = h * STRIDE[0] - PADS[0], v * STRIDE[1] - PADS[1]
    x += offset(b, c, row, col, X_STEPS)
    best = tl.full((ROWS, COLS), float("-inf"), tl.float32)
    # Where all is -inf the first element is the maximum, be it padding or not; the first NaN is larger than all.
    first = tl.zeros((ROWS, COLS), tl.int32)
    for tap in tl.range(0, TAPS, loop_unroll_factor=UNROLL):
        i, j = tap // KERNEL[1], tap % KERNEL[1]
        mask = within(rows, row + i, col + j, SIZE)
        value = tl.load(x + (i * X_STEPS[2] + j * X_STEPS[3]), mask=mask, other=float("-inf")).to(tl.float32)
        better = (value > best) | ((value != value) & (best == best))
        best, first = tl.where(better, value, best), tl.where(better, tap, first)
    tl.store(
        out + offset(b, c, h, v, O_STEPS), first.to(out.dtype.element_ty), mask=rows[:, None] & (v < SHAPE[3])[None, :]
    )


@triton.jit
def _mean(out, x, SHAPE: tl.constexpr, O_STEPS: tl.constexpr, X_STEPS: tl.constexpr, SIZE: tl.constexpr,
          ALL: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, TAPS: tl.constexpr,
          UNROLL: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    b, c, h, v, rows = tile(SHAPE, ROWS, COLS, WIDE)
    row, col = h * STRIDE[0] - PADS[0], v * STRIDE[1] - PADS[1]
    x += offset(b, c, row, col, X_STEPS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    for tap in tl.range(0, TAPS, loop_unroll_factor=UNROLL):
        i, j = tap // KERNEL[1], tap % KERNEL[1]
        mask = within(rows, row + i, col + j, SIZE)
        total += tl.load(x + (i * X_STEPS[2] + j * X_STEPS[3]), mask=mask, other=0.0).to(tl.float32)
    total *= _share(row, KERNEL[0], SIZE[0], ALL)[:, None] * _share(col, KERNEL[1], SIZE[1], ALL)[None, :]
    tl.store(
        out + offset(b, c, h, v, O_STEPS), total.to(out.dtype.element_ty), mask=rows[:, None] & (v < SHAPE[3])[None, :]
    )


@triton.jit
def _share(first, taps: tl.constexpr, size: tl.constexpr, ALL: tl.constexpr):
    """What the rows of a window that begins there weigh in a mean: one by their number, those outside left out or not.

    Where all are outside that is what a mean of nothing is.
    """
    met = tl.minimum(first + taps, size) - tl.maximum(first, 0)
    return 1.0 / (tl.zeros_like(met) + taps if ALL else tl.maximum(met, 0)).to(tl.float32)


@triton.jit
def _max_spread(out, dy, first, SHAPE: tl.constexpr, SIZE: tl.constexpr, O_STEPS: tl.constexpr,
                Y_STEPS: tl.constexpr, F_STEPS: tl.constexpr, Y_SIZE: tl.constexpr, KERNEL: tl.constexpr,
                STRIDE: tl.constexpr, PADS: tl.constexpr, ADDS: tl.constexpr, ROWS: tl.constexpr,
                COLS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    b, c, q, p, rows = tile(SHAPE, ROWS, COLS, WIDE)
    out += b * O_STEPS[0] + c * O_STEPS[1] + q * (STRIDE[0] * O_STEPS[2])
    dy += offset(b, c, q, p, Y_STEPS)
    first += offset(b, c, q, p, F_STEPS)
    for phase in tl.static_range(tl.constexpr(STRIDE[0])):
        totals = ()
        for beside in tl.static_range(tl.constexpr(STRIDE[1])):
            total = tl.zeros((ROWS, COLS), tl.float32)
            for i in tl.static_range(tl.constexpr(KERNEL[0])):
                for j in tl.static_range(tl.constexpr(KERNEL[1])):
                    if met(phase, i, STRIDE[0], PADS[0]) and met(beside, j, STRIDE[1], PADS[1]):
                        down, along = (phase + PADS[0] - i) // STRIDE[0], (beside + PADS[1] - j) // STRIDE[1]
                        mask = within(rows, q + down, p + along, Y_SIZE)
                        taken = tl.load(first + (down * F_STEPS[2] + along * F_STEPS[3]), mask=mask, other=-1)
                        slope = tl.load(dy + (down * Y_STEPS[2] + along * Y_STEPS[3]), mask=mask, other=0.0)
                        total += tl.where(taken == i * KERNEL[1] + j, slope.to(tl.float32), 0.0)
            totals = totals + (total,)  # noqa: RUF005 (Triton knows no star)
        to, inside = out + phase * O_STEPS[2], rows & (q * STRIDE[0] + phase < SIZE[0])
        put(to, totals, inside, first_column(SHAPE, COLS), SIZE[1], O_STEPS[3], ADDS)


@triton.jit
def _mean_spread(out, dy, SHAPE: tl.constexpr, SIZE: tl.constexpr, O_STEPS: tl.constexpr, Y_STEPS: tl.constexpr,
                 Y_SIZE: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr,
                 ALL: tl.constexpr, ADDS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
                 WIDE: tl.constexpr):  # fmt: skip
    b, c, q, p, rows = tile(SHAPE, ROWS, COLS, WIDE)
    out += b * O_STEPS[0] + c * O_STEPS[1] + q * (STRIDE[0] * O_STEPS[2])
    dy += offset(b, c, q, p, Y_STEPS)
    for phase in tl.static_range(tl.constexpr(STRIDE[0])):
        totals = ()
        for beside in tl.static_range(tl.constexpr(STRIDE[1])):
            total = tl.zeros((ROWS, COLS), tl.float32)
            for i in tl.static_range(tl.constexpr(KERNEL[0])):
                for j in tl.static_range(tl.constexpr(KERNEL[1])):
                    if met(phase, i, STRIDE[0], PADS[0]) and met(beside, j, STRIDE[1], PADS[1]):
                        down, along = (phase + PADS[0] - i) // STRIDE[0], (beside + PADS[1] - j) // STRIDE[1]
                        mask = within(rows, q + down, p + along, Y_SIZE)
                        slope = tl.load(dy + (down * Y_STEPS[2] + along * Y_STEPS[3]), mask=mask, other=0.0)
                        first, beginning = (q + down) * STRIDE[0] - PADS[0], (p + along) * STRIDE[1] - PADS[1]
                        share = _share(first, KERNEL[0], SIZE[0], ALL)[:, None]
                        share *= _share(beginning, KERNEL[1], SIZE[1], ALL)[None, :]
                        total += tl.where(mask, slope.to(tl.float32) * share, 0.0)
            totals = totals + (total,)  # noqa: RUF005 (Triton knows no star)
        to, inside = out + phase * O_STEPS[2], rows & (q * STRIDE[0] + phase < SIZE[0])
        put(to, totals, inside, first_column(SHAPE, COLS), SIZE[1], O_STEPS[3], ADDS)

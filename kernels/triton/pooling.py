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

from castile.kernels.triton.channels import held
from castile.kernels.triton.launch import Launch, Plan, planned, takes
from castile.kernels.triton.lines import each, folded, text
from castile.kernels.triton.planes import SETTINGS, corners, known, met, program, put, put_phases, tile, walk, within
from castile.kernels.triton.views import View, view, wide
from castile.kernels.windows import Pads, Pair

_SCALED = text("x -> scale * x", "scale")
# Elements of a window up to which a loop over them is written out.
_MOST_WRITTEN_OUT = 64


@planned
def max_pool2d(out: Any, x: Any, *, kernel: Pair, stride: Pair, pads: Pads) -> Plan | None:
    """See the definition."""
    if not takes(out, x):
        return None

    def launches(setting: tuple[int, int]) -> list[Launch]:
        return [_pooled(_maximum, view(out), x, kernel, stride, pads, setting, {"NUMBER": False})]

    return _plan(launches, out)


@planned
def max_pool2d_grad(
    out: Any, dy: Any, x: Any, *, kernel: Pair, stride: Pair, pads: Pads, accumulate: bool
) -> Plan | None:
    """See the definition."""
    if not takes(out, dy, x) or dy.size == 0:
        return None
    dims = (0, 2, 3, 1) if view(x).steps[1] == 1 else (0, 1, 2, 3)
    first = held(tuple(dy.shape), dims, "int8" if prod(kernel) < 2**7 else "int32")
    how = {"F_STEPS": first.steps, "ADDS": accumulate}

    def launches(setting: tuple[int, int]) -> list[Launch]:
        found = _pooled(_maximum, first, x, kernel, stride, pads, setting, {"NUMBER": True})
        return [found, _spread(_max_spread, out, dy, [first], kernel, stride, pads, setting, how)]

    return _plan(launches, out)


@planned
def avg_pool2d(out: Any, x: Any, *, kernel: Pair, stride: Pair, pads: Pads, padded: bool) -> Plan | None:
    """See the definition. Sums are in float32."""
    if not takes(out, x):
        return None

    def launches(setting: tuple[int, int]) -> list[Launch]:
        return [_pooled(_mean, view(out), x, kernel, stride, pads, setting, {"ALL": padded})]

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

    def launches(setting: tuple[int, int]) -> list[Launch]:
        return [_spread(_mean_spread, out, dy, [], kernel, stride, pads, setting, how)]

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


def _plan(launches: Callable[[tuple[int, int]], list[Launch]], out: Any) -> Plan:
    return Plan(SETTINGS, launches) if out.size else Plan((None,), lambda _: [])


def _pooled(
    pooling: Any,
    out: View,
    x: Any,
    kernel: Pair,
    stride: Pair,
    pads: Pads,
    setting: tuple[int, int],
    how: dict[str, bool],
) -> Launch:
    """The launch of results of windows over x [b,c,H,W], each of which is told by what its window meets."""
    seen = view(x)
    walked = walk(seen, out.shape[2:], prod(kernel), setting)
    constants = {
        "OUTER": walked.outer,
        "O_STEPS": out.steps,
        "X_STEPS": seen.steps,
        "SIZE": seen.shape[2:],
        "KERNEL": tuple(kernel),
        "STRIDE": tuple(stride),
        "PADS": (pads[0], pads[2]),
        "TAPS": prod(kernel),
        "UNROLL": min(prod(kernel), _MOST_WRITTEN_OUT),
        "WIDE": wide([out, seen]),
    }
    flops = prod(out.shape) * prod(kernel)
    constants |= walked.constants | how
    return Launch(pooling, (walked.tiles * walked.blocks,), (out, seen), constants, walked.warps, flops=flops)


def _spread(
    spread: Any, out: Any, dy: Any, more: list[View], kernel: Pair, stride: Pair, pads: Pads, setting: tuple[int, int],
    how: dict[str, Any],
) -> Launch:  # fmt: skip
    """The launch of the gradient [b,c,H,W] of windows that gave dy: each place looks up the windows that it is in."""
    to, of = view(out), view(dy)
    lattice = tuple(-(-n // step) for n, step in zip(to.shape[2:], stride, strict=True))
    walked = walk(to, lattice, prod(kernel), setting)
    constants = {
        "OUTER": walked.outer,
        "SIZE": to.shape[2:],
        "O_STEPS": to.steps,
        "Y_STEPS": of.steps,
        "Y_SIZE": of.shape[2:],
        "KERNEL": tuple(kernel),
        "STRIDE": tuple(stride),
        "PADS": (pads[0], pads[2]),
        "WIDE": wide([to, of]),
    }
    constants |= walked.constants | how
    # Each element of a window is of use to one place.
    flops = prod(of.shape) * prod(kernel)
    return Launch(spread, (walked.tiles * walked.blocks,), (to, of, *more), constants, walked.warps, flops=flops)


@triton.jit
def _windows(out, x, O_STEPS: tl.constexpr, X_STEPS: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr,
             IMAGES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
             COLS: tl.constexpr, OUTER: tl.constexpr, CHANNELS: tl.constexpr, BESIDE: tl.constexpr,
             WIDE: tl.constexpr):  # fmt: skip
    """Of each thread: its first place in `out`, where the window of that begins in `x`, the row and column of both, and
    whether there is such an image.
    """
    c, number = program(CHANNELS, BESIDE, WIDE)
    image, h, v, row, col, there = corners(number, STRIDE, PADS, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS)
    b, c, there = image // OUTER, image % OUTER + c, known(there, c, CHANNELS, BESIDE)
    x += b * X_STEPS[0] + c * X_STEPS[1] + row * X_STEPS[2] + col * X_STEPS[3]
    out += b * O_STEPS[0] + c * O_STEPS[1] + h * O_STEPS[2] + v * O_STEPS[3]
    return out, x, h, v, row, col, there


@triton.jit
def _maximum(out, x, O_STEPS: tl.constexpr, X_STEPS: tl.constexpr, SIZE: tl.constexpr, KERNEL: tl.constexpr,
             STRIDE: tl.constexpr, PADS: tl.constexpr, TAPS: tl.constexpr, UNROLL: tl.constexpr, NUMBER: tl.constexpr,
             IMAGES: tl.constexpr, GROUPS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
             TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, OUTER: tl.constexpr, CHANNELS: tl.constexpr,
             BESIDE: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    out, x, h, v, row, col, there = _windows(out, x, O_STEPS, X_STEPS, STRIDE, PADS, IMAGES, GROUPS, WIDTH, TALL, BLOCK,
                                             COLS, OUTER, CHANNELS, BESIDE, WIDE)  # fmt: skip
    found = ()
    for n in tl.static_range(TALL):
        best = tl.full((BLOCK, BESIDE), float("-inf"), tl.float32)
        # Where all is -inf the first element is the maximum, be it padding or not; the first NaN is larger than all.
        first = tl.zeros((BLOCK, BESIDE), tl.int32)
        for tap in tl.range(0, TAPS, loop_unroll_factor=UNROLL):
            i, j = n * STRIDE[0] + tap // KERNEL[1], tap % KERNEL[1]
            mask = within(there, row + i, col + j, SIZE)
            value = tl.load(x + (i * X_STEPS[2] + j * X_STEPS[3]), mask=mask, other=float("-inf")).to(tl.float32)
            if NUMBER:
                better = (best == best) & ~(value <= best)
                best, first = tl.where(better, value, best), tl.where(better, tap, first)
            else:
                best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
        found = found + (first if NUMBER else best,)  # noqa: RUF005 (Triton knows no star)
    for n in tl.static_range(TALL):
        put(out + n * O_STEPS[2], found[n], there & (h + n < HEIGHT) & (v < WIDTH), False)


@triton.jit
def _mean(out, x, O_STEPS: tl.constexpr, X_STEPS: tl.constexpr, ALL: tl.constexpr, SIZE: tl.constexpr,
          KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, TAPS: tl.constexpr, UNROLL: tl.constexpr,
          IMAGES: tl.constexpr, GROUPS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr,
          BLOCK: tl.constexpr, COLS: tl.constexpr, OUTER: tl.constexpr, CHANNELS: tl.constexpr, BESIDE: tl.constexpr,
          WIDE: tl.constexpr):  # fmt: skip
    out, x, h, v, row, col, there = _windows(out, x, O_STEPS, X_STEPS, STRIDE, PADS, IMAGES, GROUPS, WIDTH, TALL, BLOCK,
                                             COLS, OUTER, CHANNELS, BESIDE, WIDE)  # fmt: skip
    found = ()
    for n in tl.static_range(TALL):
        total = tl.zeros((BLOCK, BESIDE), tl.float32)
        for tap in tl.range(0, TAPS, loop_unroll_factor=UNROLL):
            i, j = n * STRIDE[0] + tap // KERNEL[1], tap % KERNEL[1]
            mask = within(there, row + i, col + j, SIZE)
            total += tl.load(x + (i * X_STEPS[2] + j * X_STEPS[3]), mask=mask, other=0.0).to(tl.float32)
        share = _share(row + n * STRIDE[0], KERNEL[0], SIZE[0], ALL) * _share(col, KERNEL[1], SIZE[1], ALL)
        found = found + (total * share,)  # noqa: RUF005 (Triton knows no star)
    for n in tl.static_range(TALL):
        put(out + n * O_STEPS[2], found[n], there & (h + n < HEIGHT) & (v < WIDTH), False)


@triton.jit
def _share(first, taps: tl.constexpr, size: tl.constexpr, ALL: tl.constexpr):
    """What the rows of a window that begins there weigh in a mean: one by their number, those outside left out or not.

    Where all are outside that is what a mean of nothing is.
    """
    met = tl.minimum(first + taps, size) - tl.maximum(first, 0)
    return 1.0 / (tl.zeros_like(met) + taps if ALL else tl.maximum(met, 0)).to(tl.float32)


@triton.jit
def _put(out, totals, SIZE: tl.constexpr, O_STEPS: tl.constexpr, STRIDE: tl.constexpr, ADDS: tl.constexpr,
         IMAGES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
         COLS: tl.constexpr, OUTER: tl.constexpr, CHANNELS: tl.constexpr, BESIDE: tl.constexpr,
         WIDE: tl.constexpr):  # fmt: skip
    """Write what each phase of a gradient is, or add it to what is there."""
    EACH: tl.constexpr = 2 if STRIDE[1] == 2 and BESIDE == 1 else 1
    c, number = program(CHANNELS, BESIDE, WIDE)
    image, group, col, there = tile(number, IMAGES, GROUPS, WIDTH, BLOCK, COLS, EACH)
    row, col = group * (TALL * STRIDE[0]), col * (STRIDE[1] // EACH)
    at = image // OUTER * O_STEPS[0] + (image % OUTER + c) * O_STEPS[1] + row * O_STEPS[2] + col * O_STEPS[3]
    there = known(there, c, CHANNELS, BESIDE)
    put_phases(out, totals, at, there, row, col, SIZE, O_STEPS, STRIDE, EACH, ADDS)


@triton.jit
def _max_spread(out, dy, first, SIZE: tl.constexpr, O_STEPS: tl.constexpr, Y_STEPS: tl.constexpr,
                F_STEPS: tl.constexpr, Y_SIZE: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
                PADS: tl.constexpr, ADDS: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr,
                HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
                COLS: tl.constexpr, OUTER: tl.constexpr, CHANNELS: tl.constexpr, BESIDE: tl.constexpr,
                WIDE: tl.constexpr):  # fmt: skip
    c, number = program(CHANNELS, BESIDE, WIDE)
    image, group, p, there = tile(number, IMAGES, GROUPS, WIDTH, BLOCK, COLS, 1)
    b, c, q, there = image // OUTER, image % OUTER + c, group * TALL, known(there, c, CHANNELS, BESIDE)
    dy += b * Y_STEPS[0] + c * Y_STEPS[1] + q * Y_STEPS[2] + p * Y_STEPS[3]
    first += b * F_STEPS[0] + c * F_STEPS[1] + q * F_STEPS[2] + p * F_STEPS[3]
    totals = ()
    for n in tl.static_range(tl.constexpr(TALL * STRIDE[0])):
        for beside in tl.static_range(tl.constexpr(STRIDE[1])):
            total = tl.zeros((BLOCK, BESIDE), tl.float32)
            for i in tl.static_range(tl.constexpr(KERNEL[0])):
                for j in tl.static_range(tl.constexpr(KERNEL[1])):
                    if met(n, i, STRIDE[0], PADS[0]) and met(beside, j, STRIDE[1], PADS[1]):
                        down, along = (n + PADS[0] - i) // STRIDE[0], (beside + PADS[1] - j) // STRIDE[1]
                        mask = within(there, q + down, p + along, Y_SIZE)
                        slope = tl.load(dy + (down * Y_STEPS[2] + along * Y_STEPS[3]), mask=mask, other=0.0)
                        taken = tl.load(first + (down * F_STEPS[2] + along * F_STEPS[3]), mask=mask, other=-1)
                        total += tl.where(taken == i * KERNEL[1] + j, slope.to(tl.float32), 0.0)
            totals = totals + (total,)  # noqa: RUF005 (Triton knows no star)
    _put(out, totals, SIZE, O_STEPS, STRIDE, ADDS, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS, OUTER, CHANNELS, BESIDE,
         WIDE)  # fmt: skip


@triton.jit
def _mean_spread(out, dy, SIZE: tl.constexpr, O_STEPS: tl.constexpr, Y_STEPS: tl.constexpr, Y_SIZE: tl.constexpr,
                 KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, ALL: tl.constexpr,
                 ADDS: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr, HEIGHT: tl.constexpr,
                 WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
                 OUTER: tl.constexpr, CHANNELS: tl.constexpr, BESIDE: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    c, number = program(CHANNELS, BESIDE, WIDE)
    image, group, p, there = tile(number, IMAGES, GROUPS, WIDTH, BLOCK, COLS, 1)
    b, c, q, there = image // OUTER, image % OUTER + c, group * TALL, known(there, c, CHANNELS, BESIDE)
    dy += b * Y_STEPS[0] + c * Y_STEPS[1] + q * Y_STEPS[2] + p * Y_STEPS[3]
    totals = ()
    for n in tl.static_range(tl.constexpr(TALL * STRIDE[0])):
        for beside in tl.static_range(tl.constexpr(STRIDE[1])):
            total = tl.zeros((BLOCK, BESIDE), tl.float32)
            for i in tl.static_range(tl.constexpr(KERNEL[0])):
                for j in tl.static_range(tl.constexpr(KERNEL[1])):
                    if met(n, i, STRIDE[0], PADS[0]) and met(beside, j, STRIDE[1], PADS[1]):
                        down, along = (n + PADS[0] - i) // STRIDE[0], (beside + PADS[1] - j) // STRIDE[1]
                        mask = within(there, q + down, p + along, Y_SIZE)
                        slope = tl.load(dy + (down * Y_STEPS[2] + along * Y_STEPS[3]), mask=mask, other=0.0)
                        above, left = (q + down) * STRIDE[0] - PADS[0], (p + along) * STRIDE[1] - PADS[1]
                        share = _share(above, KERNEL[0], SIZE[0], ALL) * _share(left, KERNEL[1], SIZE[1], ALL)
                        total += tl.where(mask, slope.to(tl.float32) * share, 0.0)
            totals = totals + (total,)  # noqa: RUF005 (Triton knows no star)
    _put(out, totals, SIZE, O_STEPS, STRIDE, ADDS, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS, OUTER, CHANNELS, BESIDE,
         WIDE)  # fmt: skip

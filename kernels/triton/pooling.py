"""Means over windows and over all places, and their gradients: each result looks up what it is made of. And what
pooling of any kind shares. It knows no convolution.
"""

# mypy: disable-error-code="no-untyped-def, assignment"

from collections.abc import Callable
from math import prod
from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.launch import Launch, Plan, planned, takes
from castile.kernels.triton.lines import each, folded, text
from castile.kernels.triton.planes import (
    SETTINGS,
    known,
    line,
    met,
    program,
    put_phases,
    reach,
    tile,
    together,
    walk,
    within,
)
from castile.kernels.triton.views import View, view, wide
from castile.kernels.windows import Pads, Pair

_SCALED = text("x -> scale * x", "scale")
# Elements of a window up to which a loop over them is written out.
MOST_WRITTEN_OUT = 64


@planned
def avg_pool2d(out: Any, x: Any, *, kernel: Pair, stride: Pair, pads: Pads, padded: bool) -> Plan | None:
    """See the definition. Sums are in float32."""
    return windowed(_mean, out, x, kernel, stride, pads, {"ALL": padded})


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
        return [spread(_mean_spread, out, dy, [], kernel, stride, pads, setting, how)]

    return planned_for(launches, out)


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


def planned_for(
    launches: Callable[[tuple[int, int]], list[Launch]], out: Any, settings: tuple[tuple[int, int], ...] = SETTINGS
) -> Plan:
    """The plan of these launches; of none where there is no result."""
    return Plan(settings, launches) if out.size else Plan((None,), lambda _: [])


def windowed(
    pooling: Any, out: Any, x: Any, kernel: Pair, stride: Pair, pads: Pads, how: dict[str, bool]
) -> Plan | None:
    """The plan of `pooled` results alone."""
    if not takes(out, x):
        return None
    return planned_for(lambda setting: [pooled(pooling, view(out), x, kernel, stride, pads, setting, how)], out)


def pooled(
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
    near = together(seen, out, stride[1]) if prod(kernel) <= MOST_WRITTEN_OUT else 1
    walked = walk(seen, out.shape[2:], prod(kernel), setting, near=near)
    constants = {
        "OUTER": walked.outer,
        "O_STEPS": out.steps,
        "O_SIZE": out.shape[2:],
        "X_STEPS": seen.steps,
        "SIZE": seen.shape[2:],
        "KERNEL": tuple(kernel),
        "STRIDE": tuple(stride),
        "PADS": (pads[0], pads[2]),
        "UNROLL": kernel[0] if prod(kernel) <= MOST_WRITTEN_OUT else 1,
        "NEAR": near,
        "WIDE": wide([out, seen]),
    }
    flops = prod(out.shape) * prod(kernel)
    constants |= walked.constants | how
    return Launch(pooling, (walked.tiles * walked.blocks,), (out, seen), constants, walked.warps, flops=flops)


def spread(
    spread: Any, out: Any, dy: Any, more: list[View], kernel: Pair, stride: Pair, pads: Pads, setting: tuple[int, int],
    how: dict[str, Any],
) -> Launch:  # fmt: skip
    """The launch of the gradient [b,c,H,W] of windows that gave dy: each place looks up the windows that it is in."""
    to, of = view(out), view(dy)
    lattice = tuple(-(-n // step) for n, step in zip(to.shape[2:], stride, strict=True))
    near = together(to, of, stride[1])
    walked = walk(to, lattice, prod(kernel), setting, near=near)
    constants = {
        "OUTER": walked.outer,
        "NEAR": near,
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
def begin(number, c, STEPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, STEP: tl.constexpr,
          EACH: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr,
          BLOCK: tl.constexpr, COLS: tl.constexpr, OUTER: tl.constexpr, CHANNELS: tl.constexpr,
          BESIDE: tl.constexpr):  # fmt: skip
    """Where columns begin in the first row of a thread, EACH for one of it, the number of that row and of the column,
    and whether there is such an image: rows are STRIDE for one of the walk less PAD, columns STEP for one.
    """
    image, group, col, there = tile(number, IMAGES, GROUPS, WIDTH, BLOCK, COLS, EACH)
    row, col = group * (TALL * STRIDE) - PAD, col * STEP
    at = image // OUTER * STEPS[0] + (image % OUTER + c) * STEPS[1] + row * STEPS[2] + col * STEPS[3]
    return at, row, col, known(there, c, CHANNELS, BESIDE)


@triton.jit
def looked_up(number, c, STEPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, STEP: tl.constexpr,
              NUM: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr,
              BLOCK: tl.constexpr, COLS: tl.constexpr, OUTER: tl.constexpr, CHANNELS: tl.constexpr,
              BESIDE: tl.constexpr):  # fmt: skip
    """The places that threads look up, as `line` has them: the first of STEP columns of each, and NUM of them."""
    one = begin(number, c, STEPS, STRIDE, PAD, STEP, 1, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS, OUTER, CHANNELS,
                BESIDE)  # fmt: skip
    every = begin(number, c, STEPS, STRIDE, PAD, 1, NUM, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS, OUTER, CHANNELS,
                  BESIDE)  # fmt: skip
    return one, every


@triton.jit
def _mean(out, x, ALL: tl.constexpr, O_STEPS: tl.constexpr, O_SIZE: tl.constexpr, X_STEPS: tl.constexpr,
          SIZE: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, UNROLL: tl.constexpr,
          NEAR: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
          TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, OUTER: tl.constexpr, CHANNELS: tl.constexpr,
          BESIDE: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    c, number = program(CHANNELS, BESIDE, WIDE)
    NUM: tl.constexpr = NEAR * STRIDE[1] if NEAR > 1 else 1
    places = looked_up(number, c, X_STEPS, STRIDE[0], PADS[0], NEAR * STRIDE[1], NUM, IMAGES, GROUPS, WIDTH, TALL,
                       BLOCK, COLS, OUTER, CHANNELS, BESIDE)  # fmt: skip
    _, above, left, _ = places[0]
    found = ()
    for n in tl.static_range(TALL):
        totals = (tl.zeros((BLOCK, BESIDE), tl.float32),) * NEAR
        for i in tl.range(0, KERNEL[0], loop_unroll_factor=UNROLL):
            values = line(x, places, n * STRIDE[0] + i, SIZE, X_STEPS, -PADS[1],
                          (NEAR - 1) * STRIDE[1] + KERNEL[1] - PADS[1], NUM, 0.0)  # fmt: skip
            sums = ()
            for place in tl.static_range(NEAR):
                total = totals[place]
                for j in tl.static_range(tl.constexpr(KERNEL[1])):
                    total += values[place * STRIDE[1] + j].to(tl.float32)
                sums = sums + (total,)  # noqa: RUF005 (Triton knows no star)
            totals = sums
        for place in tl.static_range(NEAR):
            begins = left + (place * STRIDE[1] - PADS[1])
            share = _share(above + n * STRIDE[0], KERNEL[0], SIZE[0], ALL) * _share(begins, KERNEL[1], SIZE[1], ALL)
            found = found + (totals[place] * share,)  # noqa: RUF005 (Triton knows no star)
    at, row, col, there = begin(number, c, O_STEPS, 1, 0, 1, NEAR, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS, OUTER,
                                CHANNELS, BESIDE)  # fmt: skip
    put_phases(out, found, at, there, row, col, O_SIZE, O_STEPS, (1, 1), NEAR, False)


@triton.jit
def _share(first, taps: tl.constexpr, size: tl.constexpr, ALL: tl.constexpr):
    """What the rows of a window that begins there weigh in a mean: one by their number, those outside left out or not.

    Where all are outside that is what a mean of nothing is.
    """
    met = tl.minimum(first + taps, size) - tl.maximum(first, 0)
    return 1.0 / (tl.zeros_like(met) + taps if ALL else tl.maximum(met, 0)).to(tl.float32)


@triton.jit
def put_gradient(out, totals, number, c, SIZE: tl.constexpr, O_STEPS: tl.constexpr, STRIDE: tl.constexpr,
                 ADDS: tl.constexpr, NEAR: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr,
                 WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
                 OUTER: tl.constexpr, CHANNELS: tl.constexpr, BESIDE: tl.constexpr):  # fmt: skip
    """Write what each phase of a gradient is, or add it to what is there."""
    EACH: tl.constexpr = NEAR * STRIDE[1] if NEAR > 1 or (STRIDE[1] == 2 and BESIDE == 1) else 1
    at, row, col, there = begin(number, c, O_STEPS, STRIDE[0], 0, 1 if EACH > 1 else STRIDE[1], EACH, IMAGES, GROUPS,
                                WIDTH, TALL, BLOCK, COLS, OUTER, CHANNELS, BESIDE)  # fmt: skip
    put_phases(out, totals, at, there, row, col, SIZE, O_STEPS, STRIDE, EACH, ADDS)


@triton.jit
def _mean_spread(out, dy, SIZE: tl.constexpr, O_STEPS: tl.constexpr, Y_STEPS: tl.constexpr, Y_SIZE: tl.constexpr,
                 KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, ALL: tl.constexpr, ADDS: tl.constexpr,
                 NEAR: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr, HEIGHT: tl.constexpr,
                 WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, OUTER: tl.constexpr,
                 CHANNELS: tl.constexpr, BESIDE: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    c, number = program(CHANNELS, BESIDE, WIDE)
    places = looked_up(number, c, Y_STEPS, 1, 0, NEAR, NEAR, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS, OUTER, CHANNELS,
                       BESIDE)  # fmt: skip
    begins: tl.constexpr = reach(KERNEL[1], STRIDE[1], PADS[1], False)
    ends: tl.constexpr = reach(KERNEL[1], STRIDE[1], PADS[1], True) + NEAR
    _, q, p, there = places[0]
    found = ()
    for n in tl.static_range(tl.constexpr(TALL * STRIDE[0])):
        totals = (tl.zeros((BLOCK, BESIDE), tl.float32),) * (NEAR * STRIDE[1])
        for i in tl.static_range(tl.constexpr(KERNEL[0])):
            if met(n, i, STRIDE[0], PADS[0]):
                down = (n + PADS[0] - i) // STRIDE[0]
                slopes = line(dy, places, down, Y_SIZE, Y_STEPS, begins, ends, NEAR, 0.0)
                above = _share((q + down) * STRIDE[0] - PADS[0], KERNEL[0], SIZE[0], ALL)
                sums = ()
                for place in tl.static_range(tl.constexpr(NEAR * STRIDE[1])):
                    total = totals[place]
                    for j in tl.static_range(tl.constexpr(KERNEL[1])):
                        if met(place, j, STRIDE[1], PADS[1]):
                            along = (place + PADS[1] - j) // STRIDE[1]
                            left = _share((p + along) * STRIDE[1] - PADS[1], KERNEL[1], SIZE[1], ALL)
                            mask = within(there, q + down, p + along, Y_SIZE)
                            slope = slopes[(place + PADS[1] - j) // STRIDE[1] - begins].to(tl.float32)
                            total += tl.where(mask, slope * (above * left), 0.0)
                    sums = sums + (total,)  # noqa: RUF005 (Triton knows no star)
                totals = sums
        found = found + totals
    put_gradient(out, found, number, c, SIZE, O_STEPS, STRIDE, ADDS, NEAR, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS,
                 OUTER, CHANNELS, BESIDE)  # fmt: skip

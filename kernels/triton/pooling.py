"""Average and global pooling and their gradients, and what all poolings share. Each result gathers its inputs.

It knows no convolution.
"""

# mypy: disable-error-code="no-untyped-def, assignment"

from collections.abc import Callable
from math import prod
from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.codegen import elementwise_plan, reduction_plan
from castile.kernels.triton.image_tiles import (
    SETTINGS,
    columns_per_thread,
    exists,
    in_bounds,
    load_line,
    meets,
    program_channels,
    reach,
    store_phases,
    tile_columns,
    tiling,
)
from castile.kernels.triton.launch import Launch, LaunchPlan, are_floats, planned
from castile.kernels.triton.snippet import snippet
from castile.kernels.triton.views import View, needs_64_bits, view
from castile.kernels.windows import Pads, Pair

_SCALED = snippet("x -> scale * x", "scale")
# Elements of a window up to which a loop over them is written out.
MOST_WRITTEN_OUT = 64


@planned
def avg_pool2d(out: Any, x: Any, *, kernel: Pair, stride: Pair, pads: Pads, padded: bool) -> LaunchPlan | None:
    """See the definition. Sums are in float32."""
    return pooling_plan(_mean, out, x, kernel, stride, pads, {"ALL": padded})


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
) -> LaunchPlan | None:
    """See the definition. Sums are in float32."""
    if not are_floats(out, dy) or dy.size == 0:
        return None

    how = {"ALL": padded, "ADDS": accumulate}

    def launches(setting: tuple[int, int]) -> list[Launch]:
        return [pooling_grad_launch(_mean_grad, out, dy, [], kernel, stride, pads, setting, how)]

    return unless_empty(launches, out)


@planned
def global_pool(out: Any, x: Any, *, scale: float, accumulate: bool) -> LaunchPlan | None:
    """See the definition. Sums are in float32."""
    if not are_floats(out, x):
        return None
    if x.ndim == 2:
        return elementwise_plan(_SCALED, [view(out)], [view(x)], {"scale": scale}, accumulate)
    return reduction_plan(_SCALED, [view(out)], [view(x)], tuple(range(2, x.ndim)), {"scale": scale}, adds=accumulate)


@planned
def global_pool_grad(out: Any, dy: Any, *, shape: tuple[int, ...], scale: float, accumulate: bool) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, dy):
        return None
    everywhere = View(dy, tuple(shape), (*view(dy).steps, *[0] * (len(shape) - 2)))
    return elementwise_plan(_SCALED, [view(out)], [everywhere], {"scale": scale}, accumulate)


def unless_empty(
    launches: Callable[[tuple[int, int]], list[Launch]], out: Any, settings: tuple[tuple[int, int], ...] = SETTINGS
) -> LaunchPlan:
    """The plan of these launches; of none where the result is empty."""
    return LaunchPlan(settings, launches) if out.size else LaunchPlan((None,), lambda _: [])


def pooling_plan(
    pooling: Any, out: Any, x: Any, kernel: Pair, stride: Pair, pads: Pads, how: dict[str, bool]
) -> LaunchPlan | None:
    """The plan of a pooling's results."""
    if not are_floats(out, x):
        return None
    to = view(out)
    return unless_empty(lambda setting: [pooling_launch(pooling, to, x, kernel, stride, pads, setting, how)], out)


def pooling_launch(
    pooling: Any,
    out: View,
    x: Any,
    kernel: Pair,
    stride: Pair,
    pads: Pads,
    setting: tuple[int, int],
    how: dict[str, bool],
) -> Launch:
    """The launch of the results of windows over x [b,c,H,W]."""
    seen = view(x)
    near = columns_per_thread(seen, out, stride[1]) if prod(kernel) <= MOST_WRITTEN_OUT else 1
    walked = tiling(seen, out.shape[2:], prod(kernel), setting, near=near)
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
        "WIDE": needs_64_bits([out, seen]),
    }
    flops = prod(out.shape) * prod(kernel)
    constants |= walked.constants | how
    return Launch(pooling, (walked.tiles * walked.blocks,), (out, seen), constants, walked.warps, flops=flops)


def pooling_grad_launch(
    spread: Any, out: Any, dy: Any, more: list[View], kernel: Pair, stride: Pair, pads: Pads, setting: tuple[int, int],
    how: dict[str, Any],
) -> Launch:  # fmt: skip
    """The launch of the gradient [b,c,H,W] from dy: each place gathers from the windows that it is in."""
    to, of = view(out), view(dy)
    lattice = tuple(-(-n // step) for n, step in zip(to.shape[2:], stride, strict=True))
    near = columns_per_thread(to, of, stride[1])
    walked = tiling(to, lattice, prod(kernel), setting, near=near)
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
        "WIDE": needs_64_bits([to, of]),
    }
    constants |= walked.constants | how
    # Each element of a window is of use to one place.
    flops = prod(of.shape) * prod(kernel)
    return Launch(spread, (walked.tiles * walked.blocks,), (to, of, *more), constants, walked.warps, flops=flops)


@triton.jit
def first_columns(number, c, STEPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, STEP: tl.constexpr,
                  EACH: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
                  TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, OUTER: tl.constexpr,
                  CHANNELS: tl.constexpr, BESIDE: tl.constexpr):  # fmt: skip
    """Offsets of the EACH first columns of each thread's first row, that row and the column, and whether the image
    exists.

    Rows are STRIDE for each of the tiling, less PAD; columns STEP for each.
    """
    image, group, col, there = tile_columns(number, IMAGES, GROUPS, WIDTH, BLOCK, COLS, EACH)
    row, col = group * (TALL * STRIDE) - PAD, col * STEP
    at = image // OUTER * STEPS[0] + (image % OUTER + c) * STEPS[1] + row * STEPS[2] + col * STEPS[3]
    return at, row, col, exists(there, c, CHANNELS, BESIDE)


@triton.jit
def input_columns(number, c, STEPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, STEP: tl.constexpr,
                  NUM: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
                  TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, OUTER: tl.constexpr,
                  CHANNELS: tl.constexpr, BESIDE: tl.constexpr):  # fmt: skip
    """The places that threads load, as `load_line` takes them: the first of each one's STEP columns, and NUM of them.
    """
    one = first_columns(number, c, STEPS, STRIDE, PAD, STEP, 1, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS, OUTER,
                        CHANNELS, BESIDE)  # fmt: skip
    every = first_columns(number, c, STEPS, STRIDE, PAD, 1, NUM, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS, OUTER,
                          CHANNELS, BESIDE)  # fmt: skip
    return one, every


@triton.jit
def _mean(out, x, ALL: tl.constexpr, O_STEPS: tl.constexpr, O_SIZE: tl.constexpr, X_STEPS: tl.constexpr,
          SIZE: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, UNROLL: tl.constexpr,
          NEAR: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
          TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, OUTER: tl.constexpr, CHANNELS: tl.constexpr,
          BESIDE: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    c, number = program_channels(CHANNELS, BESIDE, WIDE)
    NUM: tl.constexpr = NEAR * STRIDE[1] if NEAR > 1 else 1
    places = input_columns(number, c, X_STEPS, STRIDE[0], PADS[0], NEAR * STRIDE[1], NUM, IMAGES, GROUPS, WIDTH, TALL,
                           BLOCK, COLS, OUTER, CHANNELS, BESIDE)  # fmt: skip
    _, above, left, _ = places[0]
    found = ()
    for n in tl.static_range(TALL):
        totals = (tl.zeros((BLOCK, BESIDE), tl.float32),) * NEAR
        for i in tl.range(0, KERNEL[0], loop_unroll_factor=UNROLL):
            values = load_line(x, places, n * STRIDE[0] + i, SIZE, X_STEPS, -PADS[1],
                               (NEAR - 1) * STRIDE[1] + KERNEL[1] - PADS[1], NUM, 0.0)  # fmt: skip
            sums = ()
            for place in tl.static_range(NEAR):
                total = totals[place]
                for j in tl.static_range(tl.constexpr(KERNEL[1])):
                    total += values[place * STRIDE[1] + j].to(tl.float32)
                sums = sums + (total,)  # noqa: RUF005 (Triton knows no star)
            totals = sums
        for place in tl.static_range(NEAR):
            along = _window_weight(left + (place * STRIDE[1] - PADS[1]), KERNEL[1], SIZE[1], ALL)
            share = _window_weight(above + n * STRIDE[0], KERNEL[0], SIZE[0], ALL) * along
            found = found + (totals[place] * share,)  # noqa: RUF005 (Triton knows no star)
    at, row, col, there = first_columns(number, c, O_STEPS, 1, 0, 1, NEAR, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS,
                                        OUTER, CHANNELS, BESIDE)  # fmt: skip
    store_phases(out, found, at, there, row, col, O_SIZE, O_STEPS, (1, 1), NEAR, False)


@triton.jit
def _window_weight(first, taps: tl.constexpr, size: tl.constexpr, ALL: tl.constexpr):
    """The weight of a window's rows in a mean: one by their number, with those outside counted if ALL.

    Where all are outside, it is that of a mean of nothing.
    """
    met = tl.minimum(first + taps, size) - tl.maximum(first, 0)
    return 1.0 / (tl.zeros_like(met) + taps if ALL else tl.maximum(met, 0)).to(tl.float32)


@triton.jit
def store_gradient(out, totals, number, c, SIZE: tl.constexpr, O_STEPS: tl.constexpr, STRIDE: tl.constexpr,
                   ADDS: tl.constexpr, NEAR: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr,
                   WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
                   OUTER: tl.constexpr, CHANNELS: tl.constexpr, BESIDE: tl.constexpr):  # fmt: skip
    """Write the phases of a gradient, or add them to what is there."""
    EACH: tl.constexpr = NEAR * STRIDE[1] if NEAR > 1 or (STRIDE[1] == 2 and BESIDE == 1) else 1
    at, row, col, there = first_columns(number, c, O_STEPS, STRIDE[0], 0, 1 if EACH > 1 else STRIDE[1], EACH, IMAGES,
                                        GROUPS, WIDTH, TALL, BLOCK, COLS, OUTER, CHANNELS, BESIDE)  # fmt: skip
    store_phases(out, totals, at, there, row, col, SIZE, O_STEPS, STRIDE, EACH, ADDS)


@triton.jit
def _mean_grad(out, dy, SIZE: tl.constexpr, O_STEPS: tl.constexpr, Y_STEPS: tl.constexpr, Y_SIZE: tl.constexpr,
               KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, ALL: tl.constexpr, ADDS: tl.constexpr,
               NEAR: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr, HEIGHT: tl.constexpr,
               WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, OUTER: tl.constexpr,
               CHANNELS: tl.constexpr, BESIDE: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    c, number = program_channels(CHANNELS, BESIDE, WIDE)
    places = input_columns(number, c, Y_STEPS, 1, 0, NEAR, NEAR, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS, OUTER,
                           CHANNELS, BESIDE)  # fmt: skip
    begins: tl.constexpr = reach(KERNEL[1], STRIDE[1], PADS[1], False)
    ends: tl.constexpr = reach(KERNEL[1], STRIDE[1], PADS[1], True) + NEAR
    _, q, p, there = places[0]
    found = ()
    for n in tl.static_range(tl.constexpr(TALL * STRIDE[0])):
        totals = (tl.zeros((BLOCK, BESIDE), tl.float32),) * (NEAR * STRIDE[1])
        for i in tl.static_range(tl.constexpr(KERNEL[0])):
            if meets(n, i, STRIDE[0], PADS[0]):
                down = (n + PADS[0] - i) // STRIDE[0]
                grads = load_line(dy, places, down, Y_SIZE, Y_STEPS, begins, ends, NEAR, 0.0)
                above = _window_weight((q + down) * STRIDE[0] - PADS[0], KERNEL[0], SIZE[0], ALL)
                sums = ()
                for place in tl.static_range(tl.constexpr(NEAR * STRIDE[1])):
                    total = totals[place]
                    for j in tl.static_range(tl.constexpr(KERNEL[1])):
                        if meets(place, j, STRIDE[1], PADS[1]):
                            along = (place + PADS[1] - j) // STRIDE[1]
                            left = _window_weight((p + along) * STRIDE[1] - PADS[1], KERNEL[1], SIZE[1], ALL)
                            mask = in_bounds(there, q + down, p + along, Y_SIZE)
                            grad = grads[(place + PADS[1] - j) // STRIDE[1] - begins].to(tl.float32)
                            total += tl.where(mask, grad * (above * left), 0.0)
                    sums = sums + (total,)  # noqa: RUF005 (Triton knows no star)
                totals = sums
        found = found + totals
    store_gradient(out, found, number, c, SIZE, O_STEPS, STRIDE, ADDS, NEAR, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS,
                   OUTER, CHANNELS, BESIDE)  # fmt: skip

"""Max pooling and its gradient.

Where windows overlap little each place of the gradient finds the maxima of its windows again (`max_recompute`).
Otherwise a first launch finds each window's maximum and keeps its position, and a second one gathers the gradient. It
knows no convolution.
"""

# mypy: disable-error-code="no-untyped-def, assignment"

from math import prod
from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.channels import workspace
from castile.kernels.triton.image_tiles import load_line, meets, program_channels, reach, store_phases
from castile.kernels.triton.launch import Launch, LaunchPlan, are_floats, planned
from castile.kernels.triton.max_recompute import SETTINGS, max_recompute, overlaps_little
from castile.kernels.triton.pooling import (
    first_columns,
    input_columns,
    pooling_grad_launch,
    pooling_launch,
    pooling_plan,
    store_gradient,
    unless_empty,
)
from castile.kernels.triton.views import view
from castile.kernels.windows import Pads, Pair


@planned
def max_pool2d(out: Any, x: Any, *, kernel: Pair, stride: Pair, pads: Pads) -> LaunchPlan | None:
    """See the definition."""
    return pooling_plan(_maximum, out, x, kernel, stride, pads, {"NUMBER": False})


@planned
def max_pool2d_grad(
    out: Any, dy: Any, x: Any, *, kernel: Pair, stride: Pair, pads: Pads, accumulate: bool
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, dy, x) or dy.size == 0:
        return None
    if overlaps_little(kernel, stride, x):
        return unless_empty(
            lambda setting: [max_recompute(out, dy, x, kernel, stride, pads, accumulate, setting)], out, SETTINGS
        )
    dims = (0, 2, 3, 1) if view(x).steps[1] == 1 else (0, 1, 2, 3)
    first = workspace(tuple(dy.shape), dims, "int8" if prod(kernel) < 2**7 else "int32")
    how = {"F_STEPS": first.steps, "ADDS": accumulate}

    def launches(setting: tuple[int, int]) -> list[Launch]:
        found = pooling_launch(_maximum, first, x, kernel, stride, pads, setting, {"NUMBER": True})
        return [found, pooling_grad_launch(_max_grad, out, dy, [first], kernel, stride, pads, setting, how)]

    return unless_empty(launches, out)


@triton.jit
def _maximum(out, x, O_STEPS: tl.constexpr, O_SIZE: tl.constexpr, X_STEPS: tl.constexpr, SIZE: tl.constexpr,
             KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, UNROLL: tl.constexpr,
             NUMBER: tl.constexpr, NEAR: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr,
             HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
             OUTER: tl.constexpr, CHANNELS: tl.constexpr, BESIDE: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    c, number = program_channels(CHANNELS, BESIDE, WIDE)
    NUM: tl.constexpr = NEAR * STRIDE[1] if NEAR > 1 else 1
    places = input_columns(number, c, X_STEPS, STRIDE[0], PADS[0], NEAR * STRIDE[1], NUM, IMAGES, GROUPS, WIDTH, TALL,
                           BLOCK, COLS, OUTER, CHANNELS, BESIDE)  # fmt: skip
    found = ()
    for n in tl.static_range(TALL):
        bests = (tl.full((BLOCK, BESIDE), float("-inf"), tl.float32),) * NEAR
        # Where all is -inf the first element is the maximum, be it padding or not; the first NaN is larger than all.
        firsts = (tl.zeros((BLOCK, BESIDE), tl.int32),) * NEAR
        for i in tl.range(0, KERNEL[0], loop_unroll_factor=UNROLL):
            values = load_line(x, places, n * STRIDE[0] + i, SIZE, X_STEPS, -PADS[1],
                          (NEAR - 1) * STRIDE[1] + KERNEL[1] - PADS[1], NUM, float("-inf"))  # fmt: skip
            new_bests, new_firsts = (), ()
            for place in tl.static_range(NEAR):
                # Of a window's row first, as several windows have it. Numbers are chosen and not added up: they are
                # of 16 bits in the end, and ptxas 12.8 adds 0 where it adds one constant to several pairs of such.
                best = values[place * STRIDE[1]].to(tl.float32)
                first = tl.full((BLOCK, BESIDE), i * KERNEL[1], tl.int32)
                for j in tl.static_range(1, tl.constexpr(KERNEL[1])):
                    value = values[place * STRIDE[1] + j].to(tl.float32)
                    best, first = _larger(best, first, value, i * KERNEL[1] + j, NUMBER)
                best, first = _larger(bests[place], firsts[place], best, first, NUMBER)
                new_bests, new_firsts = new_bests + (best,), new_firsts + (first,)  # noqa: RUF005
            bests, firsts = new_bests, new_firsts
        found = found + (firsts if NUMBER else bests)
    at, row, col, there = first_columns(number, c, O_STEPS, 1, 0, 1, NEAR, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS,
                                        OUTER, CHANNELS, BESIDE)  # fmt: skip
    store_phases(out, found, at, there, row, col, O_SIZE, O_STEPS, (1, 1), NEAR, False)


@triton.jit
def _larger(best, first, value, number, NUMBER: tl.constexpr):
    """The larger of two, and its number: the first of equal ones, and none if one is none."""
    if NUMBER:
        better = (best == best) & ~(value <= best)
        return tl.where(better, value, best), tl.where(better, number, first)
    else:
        return tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL), first


@triton.jit
def _max_grad(out, dy, first, SIZE: tl.constexpr, O_STEPS: tl.constexpr, Y_STEPS: tl.constexpr, F_STEPS: tl.constexpr,
              Y_SIZE: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, ADDS: tl.constexpr,
              NEAR: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
              TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, OUTER: tl.constexpr, CHANNELS: tl.constexpr,
              BESIDE: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    c, number = program_channels(CHANNELS, BESIDE, WIDE)
    of_y = input_columns(number, c, Y_STEPS, 1, 0, NEAR, NEAR, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS, OUTER,
                         CHANNELS, BESIDE)  # fmt: skip
    of_f = input_columns(number, c, F_STEPS, 1, 0, NEAR, NEAR, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS, OUTER,
                         CHANNELS, BESIDE)  # fmt: skip
    begins: tl.constexpr = reach(KERNEL[1], STRIDE[1], PADS[1], False)
    ends: tl.constexpr = reach(KERNEL[1], STRIDE[1], PADS[1], True) + NEAR
    found = ()
    for n in tl.static_range(tl.constexpr(TALL * STRIDE[0])):
        totals = (tl.zeros((BLOCK, BESIDE), tl.float32),) * (NEAR * STRIDE[1])
        for i in tl.static_range(tl.constexpr(KERNEL[0])):
            if meets(n, i, STRIDE[0], PADS[0]):
                down = (n + PADS[0] - i) // STRIDE[0]
                grads = load_line(dy, of_y, down, Y_SIZE, Y_STEPS, begins, ends, NEAR, 0.0)
                taken = load_line(first, of_f, down, Y_SIZE, F_STEPS, begins, ends, NEAR, -1)
                sums = ()
                for place in tl.static_range(tl.constexpr(NEAR * STRIDE[1])):
                    total = totals[place]
                    for j in tl.static_range(tl.constexpr(KERNEL[1])):
                        if meets(place, j, STRIDE[1], PADS[1]):
                            grad = grads[(place + PADS[1] - j) // STRIDE[1] - begins].to(tl.float32)
                            number_of = taken[(place + PADS[1] - j) // STRIDE[1] - begins]
                            total += tl.where(number_of == i * KERNEL[1] + j, grad, 0.0)
                    sums = sums + (total,)  # noqa: RUF005 (Triton knows no star)
                totals = sums
        found = found + totals
    store_gradient(out, found, number, c, SIZE, O_STEPS, STRIDE, ADDS, NEAR, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS,
                   OUTER, CHANNELS, BESIDE)  # fmt: skip

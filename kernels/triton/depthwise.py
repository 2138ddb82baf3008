"""Depthwise convolutions and their gradients: sums over windows without matrix products, bound by memory bandwidth.

Each program has one channel, or some contiguous ones, whose weights are loaded once, and one tile of places, or
several. It knows no other convolution.
"""

# mypy: disable-error-code="no-untyped-def, assignment"

from math import prod
from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.channels import channels_last
from castile.kernels.triton.codegen import contiguous_steps, reduction_plan
from castile.kernels.triton.image_tiles import (
    SETTINGS,
    Tiling,
    corners,
    exists,
    in_bounds,
    meets,
    program_channels,
    store,
    store_phases,
    tile_columns,
    tiling,
)
from castile.kernels.triton.implicit_gemm import Windows
from castile.kernels.triton.launch import Launch, LaunchPlan, Workspace
from castile.kernels.triton.snippet import Snippet
from castile.kernels.triton.views import View, needs_64_bits

# Elements of a window up to which the loops over them are written out.
_MOST_TAPS = 64
# Programs that an H200 holds at once, twice over.
_FILL = 132 * 16


def is_depthwise(w: View) -> bool:
    """Whether weights [g,o,i,r,s] have one output and one input channel a group, and few window elements."""
    return w.shape[1:3] == (1, 1) and prod(w.shape[3:]) <= _MOST_TAPS


def depthwise(out: View, x: View, w: View, windows: Windows, adds: bool) -> LaunchPlan:
    """The plan of out [b,g,1,h,w] from x [b,g,1,H,W] and w [g,1,1,r,s], or of adding it."""
    to = _channels(out)
    return _each_channel(_depthwise, to.shape[2:], to, _channels(x), w, windows, adds)


def depthwise_input_gradient(out: View, dy: View, w: View, windows: Windows, adds: bool) -> LaunchPlan:
    """The plan of the input gradient out [b,g,1,H,W] from dy [b,g,1,h,w] and w, or of adding it."""
    to = _channels(out)
    lattice = tuple(-(-n // step) for n, step in zip(to.shape[2:], windows.stride, strict=True))
    return _each_channel(_input_gradient, lattice, to, _channels(dy), w, windows, adds)


def depthwise_weight_gradient(dw: View, dy: View, x: View, windows: Windows, adds: bool) -> LaunchPlan:
    """The plan of the weight gradient dw [g,1,1,r,s] from dy [b,g,1,h,w] and x [b,g,1,H,W], or of adding it."""
    of, seen = _channels(dy), _channels(x)
    size = of.shape[2:]

    def launches(setting: tuple[int, int]) -> list[Launch]:
        walked = tiling(seen, size, prod(windows.kernel), setting, True)
        parts = max(1, min(_FILL // walked.blocks, walked.tiles))
        span = -(-walked.tiles // parts)
        parts = -(-walked.tiles // span)
        room = Workspace(parts * prod(dw.shape))
        constants = _constants(walked, seen, windows, [of, seen])
        constants |= {"Y_STEPS": of.steps, "SPAN": span}
        flops = 2 * prod(of.shape) * prod(windows.kernel)
        first = Launch(
            _weight_gradient, (walked.blocks * parts,), (room, of, seen), constants, walked.warps, flops=flops
        )
        pieces = View(room, (parts, *dw.shape), contiguous_steps((parts, *dw.shape)))
        whole = reduction_plan(Snippet(("x",), (), (), ("x",)), [dw], [pieces], (0,), {}, adds=adds)
        return [first, *whole.launches(whole.settings[0])]

    return LaunchPlan(SETTINGS, launches)


def _channels(one: View) -> View:
    """[b,g,1,h,w] as [b,g,h,w]."""
    return View(one.array, (*one.shape[:2], *one.shape[3:]), (*one.steps[:2], *one.steps[3:]))


def _constants(walked: Tiling, x: View, windows: Windows, views: list[View]) -> dict[str, Any]:
    how = {"KERNEL": windows.kernel, "STRIDE": windows.stride, "PADS": windows.pads, "DILATION": windows.dilation}
    return walked.constants | how | {"X_STEPS": x.steps, "SIZE": x.shape[2:], "WIDE": needs_64_bits(views)}


def _each_channel(
    kernel: Any, size: tuple[int, ...], out: View, x: View, w: View, windows: Windows, adds: bool
) -> LaunchPlan:
    """The plan of programs that walk so many rows and columns of each image and make places of `out` of what x has."""
    if prod(out.shape) == 0:
        return LaunchPlan((None,), lambda _: [])

    def launches(setting: tuple[int, int]) -> list[Launch]:
        walked = tiling(out, size, prod(windows.kernel), setting, True)
        weights, found = View(w.array, (w.shape[0], *w.shape[3:]), (w.steps[0], *w.steps[3:])), []
        if walked.beside > 1:
            # Threads have vectors of channels, so that those of weights are to lie together.
            weights, first = channels_last(weights)
            found.append(first)
        constants = _constants(walked, x, windows, [out, x])
        constants |= {"O_STEPS": out.steps, "O_SIZE": out.shape[2:], "W_STEPS": weights.steps}
        flops = 2 * prod(out.shape[:2]) * prod(size) * prod(windows.kernel)
        grid = (walked.blocks * walked.tiles,)
        constants |= {"ADDS": adds}
        return [*found, Launch(kernel, grid, (out, x, weights), constants, walked.warps, flops=flops)]

    return LaunchPlan(SETTINGS, launches)


@triton.jit
def _weights(w, c, CHANNELS: tl.constexpr, W_STEPS: tl.constexpr, KERNEL: tl.constexpr):
    """Those of channels, one element of a window after the other."""
    found = ()
    for i in tl.static_range(tl.constexpr(KERNEL[0])):
        for j in tl.static_range(tl.constexpr(KERNEL[1])):
            value = tl.load(w + (c * W_STEPS[0] + i * W_STEPS[1] + j * W_STEPS[2]), mask=c < CHANNELS)
            found = found + (value.to(tl.float32),)  # noqa: RUF005 (Triton knows no star)
    return found


@triton.jit
def _depthwise(out, x, w, SIZE: tl.constexpr, O_SIZE: tl.constexpr, O_STEPS: tl.constexpr, X_STEPS: tl.constexpr,
               W_STEPS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr,
               DILATION: tl.constexpr, ADDS: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr,
               HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
               CHANNELS: tl.constexpr, BESIDE: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    c, number = program_channels(CHANNELS, BESIDE, WIDE)
    weights = _weights(w, c, CHANNELS, W_STEPS, KERNEL)
    b, h, v, row, col, there = corners(number, STRIDE, PADS, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS)
    there = exists(there, c, CHANNELS, BESIDE)
    x += c * X_STEPS[1] + (b * X_STEPS[0] + row * X_STEPS[2] + col * X_STEPS[3])
    totals = ()
    for n in tl.static_range(TALL):
        total = tl.zeros((BLOCK, BESIDE), tl.float32)
        for i in tl.static_range(tl.constexpr(KERNEL[0])):
            for j in tl.static_range(tl.constexpr(KERNEL[1])):
                down, along = n * STRIDE[0] + i * DILATION[0], j * DILATION[1]
                mask = in_bounds(there, row + down, col + along, SIZE)
                value = tl.load(x + (down * X_STEPS[2] + along * X_STEPS[3]), mask=mask, other=0.0)
                total += value.to(tl.float32) * weights[i * KERNEL[1] + j]
        totals = totals + (total,)  # noqa: RUF005 (Triton knows no star)
    out += c * O_STEPS[1] + (b * O_STEPS[0] + h * O_STEPS[2] + v * O_STEPS[3])
    for n in tl.static_range(TALL):
        store(out + n * O_STEPS[2], totals[n], there & (h + n < HEIGHT) & (v < WIDTH), ADDS)


@triton.jit
def _input_gradient(out, dy, w, SIZE: tl.constexpr, O_SIZE: tl.constexpr, O_STEPS: tl.constexpr, X_STEPS: tl.constexpr,
                    W_STEPS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr,
                    DILATION: tl.constexpr, ADDS: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr,
                    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
                    COLS: tl.constexpr, CHANNELS: tl.constexpr, BESIDE: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    c, number = program_channels(CHANNELS, BESIDE, WIDE)
    weights = _weights(w, c, CHANNELS, W_STEPS, KERNEL)
    b, group, p, there = tile_columns(number, IMAGES, GROUPS, WIDTH, BLOCK, COLS, 1)
    q, there = group * TALL, exists(there, c, CHANNELS, BESIDE)
    dy += c * X_STEPS[1] + (b * X_STEPS[0] + q * X_STEPS[2] + p * X_STEPS[3])
    totals = ()
    for n in tl.static_range(tl.constexpr(TALL * STRIDE[0])):
        for beside in tl.static_range(tl.constexpr(STRIDE[1])):
            total = tl.zeros((BLOCK, BESIDE), tl.float32)
            for i in tl.static_range(tl.constexpr(KERNEL[0])):
                for j in tl.static_range(tl.constexpr(KERNEL[1])):
                    if meets(n, i, STRIDE[0], PADS[0], DILATION[0]) and meets(
                        beside, j, STRIDE[1], PADS[1], DILATION[1]
                    ):
                        down = (n + PADS[0] - i * DILATION[0]) // STRIDE[0]
                        along = (beside + PADS[1] - j * DILATION[1]) // STRIDE[1]
                        mask = in_bounds(there, q + down, p + along, SIZE)
                        grad = tl.load(dy + (down * X_STEPS[2] + along * X_STEPS[3]), mask=mask, other=0.0)
                        total += grad.to(tl.float32) * weights[i * KERNEL[1] + j]
            totals = totals + (total,)  # noqa: RUF005 (Triton knows no star)
    EACH: tl.constexpr = 2 if STRIDE[1] == 2 and BESIDE == 1 else 1
    b, group, col, there = tile_columns(number, IMAGES, GROUPS, WIDTH, BLOCK, COLS, EACH)
    row, col = group * (TALL * STRIDE[0]), col * (STRIDE[1] // EACH)
    at = c * O_STEPS[1] + (b * O_STEPS[0] + row * O_STEPS[2] + col * O_STEPS[3])
    store_phases(out, totals, at, exists(there, c, CHANNELS, BESIDE), row, col, O_SIZE, O_STEPS, STRIDE, EACH, ADDS)


@triton.jit
def _weight_gradient(out, dy, x, SIZE: tl.constexpr, Y_STEPS: tl.constexpr, X_STEPS: tl.constexpr, KERNEL: tl.constexpr,
                     STRIDE: tl.constexpr, PADS: tl.constexpr, DILATION: tl.constexpr, SPAN: tl.constexpr,
                     IMAGES: tl.constexpr, GROUPS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
                     TALL: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, CHANNELS: tl.constexpr,
                     BESIDE: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    c, number = program_channels(CHANNELS, BESIDE, WIDE)
    dy += c * Y_STEPS[1]
    x += c * X_STEPS[1]
    totals = (tl.zeros((BLOCK, BESIDE), tl.float32),) * (KERNEL[0] * KERNEL[1])
    for turn in range(SPAN):
        b, h, v, row, col, there = corners(number * SPAN + turn, STRIDE, PADS, IMAGES, GROUPS, WIDTH, TALL, BLOCK, COLS)
        there = exists(there, c, CHANNELS, BESIDE)
        at_y = dy + (b * Y_STEPS[0] + h * Y_STEPS[2] + v * Y_STEPS[3])
        at_x = x + (b * X_STEPS[0] + row * X_STEPS[2] + col * X_STEPS[3])
        for n in tl.static_range(TALL):
            here = there & (h + n < HEIGHT) & (v < WIDTH)
            grad = tl.load(at_y + n * Y_STEPS[2], mask=here, other=0.0).to(tl.float32)
            sums = ()
            for i in tl.static_range(tl.constexpr(KERNEL[0])):
                for j in tl.static_range(tl.constexpr(KERNEL[1])):
                    down, along = n * STRIDE[0] + i * DILATION[0], j * DILATION[1]
                    mask = in_bounds(there, row + down, col + along, SIZE)
                    value = tl.load(at_x + (down * X_STEPS[2] + along * X_STEPS[3]), mask=mask, other=0.0)
                    total = totals[i * KERNEL[1] + j] + value.to(tl.float32) * grad
                    sums = sums + (total,)  # noqa: RUF005 (Triton knows no star)
            totals = sums
    out += (number.to(tl.int64) * CHANNELS + c) * (KERNEL[0] * KERNEL[1])
    for tap in tl.static_range(tl.constexpr(KERNEL[0] * KERNEL[1])):
        tl.store(out + tap, tl.sum(totals[tap], 0)[None, :], mask=c < CHANNELS)

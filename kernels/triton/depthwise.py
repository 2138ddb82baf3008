"""Convolutions whose every output channel sees one input channel of its own, and their gradients: no products of
matrices, but sums over windows as pooling has them, limited by what memory gives.

Each program has one channel, whose weights are read once, and walks some tiles of it. It knows no other convolution.
"""

# mypy: disable-error-code="no-untyped-def, assignment"

from math import prod
from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.correlation import Windows
from castile.kernels.triton.launch import Launch, Plan, Room
from castile.kernels.triton.lines import Text, folded, packed
from castile.kernels.triton.planes import block, met, offset, put, warps, within
from castile.kernels.triton.views import View, wide
from castile.kernels.windows import Pair

# Elements of a window up to which the loops over them are written out.
_MOST_TAPS = 64
# Threads of a program, each of which has a place, and places that each has one after the other.
_SETTINGS = ((256, 4), (128, 4), (256, 1), (128, 16))
# Programs that the largest chip holds at once, twice over.
_FILL = 148 * 16


def is_depthwise(w: View) -> bool:
    """Whether weights [g,o,i,r,s] are of one output and one input channel a group, and few enough."""
    return w.shape[1:3] == (1, 1) and prod(w.shape[3:]) <= _MOST_TAPS


def windowed(out: View, x: View, w: View, windows: Windows, adds: bool) -> Plan:
    """out [b,g,1,h,w] of x [b,g,1,H,W] and w [g,1,1,r,s], or that added to it."""
    return _each_channel(_windowed, _channels(out), _channels(out), _channels(x), w, windows, adds)


def spread(out: View, dy: View, w: View, windows: Windows, adds: bool) -> Plan:
    """The gradient out [b,g,1,H,W] of windows over it with weights w that gave dy [b,g,1,h,w], or that added to it."""
    to = _channels(out)
    lattice = (-(-n // step) for n, step in zip(to.shape[2:], windows.stride, strict=True))
    walk = View(None, (*to.shape[:2], *lattice), ())
    return _each_channel(_spread, walk, to, _channels(dy), w, windows, adds)


def weighed(dw: View, dy: View, x: View, windows: Windows, adds: bool) -> Plan:
    """The gradient dw [g,1,1,r,s] of windows over x [b,g,1,H,W] that gave dy [b,g,1,h,w], or that added to it."""
    of, seen = _channels(dy), _channels(x)

    def launches(setting: tuple[int, int]) -> list[Launch]:
        tile, tiles = _tiles(of, setting[0])
        parts = max(1, min(_FILL // of.shape[1], tiles // setting[1]))
        span = -(-tiles // parts)
        parts = -(-tiles // span)
        room = Room(parts * prod(dw.shape))
        constants = _constants(of, seen, windows, tile, [of, seen]) | {"Y_STEPS": of.steps, "SPAN": span}
        flops = 2 * prod(of.shape) * prod(windows.kernel)
        first = Launch(_weighed, (of.shape[1] * parts,), (room, of, seen), constants, warps(tile), flops=flops)
        pieces = View(room, (parts, *dw.shape), packed((parts, *dw.shape)))
        whole = folded(Text(("x",), (), (), ("x",)), [dw], [pieces], (0,), {}, adds=adds)
        return [first, *whole.launches(whole.settings[0])]

    return Plan(_SETTINGS, launches)


def _channels(one: View) -> View:
    """[b,g,1,h,w] as [b,g,h,w]."""
    return View(one.array, (*one.shape[:2], *one.shape[3:]), (*one.steps[:2], *one.steps[3:]))


def _tiles(walk: View, threads: int) -> tuple[Pair, int]:
    """Rows and columns of a tile of images [b,g,h,w], and how many tiles a channel has."""
    batch, _, high, across = walk.shape
    tile = block(threads, batch * high, across)
    return tile, -(-batch * high // tile[0]) * -(-across // tile[1])


def _constants(walk: View, x: View, windows: Windows, tile: Pair, views: list[View]) -> dict[str, Any]:
    return {
        "SHAPE": walk.shape,
        "SIZE": x.shape[2:],
        "X_STEPS": x.steps,
        "KERNEL": windows.kernel,
        "STRIDE": windows.stride,
        "PADS": windows.pads,
        "DILATION": windows.dilation,
        "ROWS": tile[0],
        "COLS": tile[1],
        "WIDE": wide(views),
    }


def _each_channel(kernel: Any, walk: View, out: View, x: View, w: View, windows: Windows, adds: bool) -> Plan:
    """The plan of programs that walk a channel of `walk` [b,g,h,w] and make places of `out` of what x has."""
    if prod(walk.shape) == 0:
        return Plan((None,), lambda _: [])

    def launches(setting: tuple[int, int]) -> list[Launch]:
        tile, tiles = _tiles(walk, setting[0])
        span = max(1, min(setting[1], tiles * walk.shape[1] // _FILL))
        constants = _constants(walk, x, windows, tile, [out, x])
        constants |= {"O_STEPS": out.steps, "W_STEPS": w.steps, "SPAN": span, "ADDS": adds, "O_SIZE": out.shape[2:]}
        grid = (walk.shape[1] * -(-tiles // span),)
        flops = 2 * prod(walk.shape) * prod(windows.kernel)
        return [Launch(kernel, grid, (out, x, w), constants, warps(tile), flops=flops)]

    return Plan(_SETTINGS, launches)


@triton.jit
def _tile(turn, SHAPE: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
          WIDE: tl.constexpr):  # fmt: skip
    """Of the places of a program's tile number `turn`: samples and rows, where columns begin, which rows there are."""
    across: tl.constexpr = (SHAPE[3] + COLS - 1) // COLS
    number = tl.program_id(0) // SHAPE[1] * SPAN + turn
    if WIDE:
        number = number.to(tl.int64)
    row, start = number // across * ROWS + tl.arange(0, ROWS), number % across * COLS
    return row // SHAPE[2], row % SHAPE[2], start, row < SHAPE[0] * SHAPE[2]


@triton.jit
def _weights(w, c, W_STEPS: tl.constexpr, KERNEL: tl.constexpr):
    """Those of a channel, one after the other."""
    found = ()
    for i in tl.static_range(tl.constexpr(KERNEL[0])):
        for j in tl.static_range(tl.constexpr(KERNEL[1])):
            value = tl.load(w + (c * W_STEPS[0] + i * W_STEPS[3] + j * W_STEPS[4])).to(tl.float32)
            found = found + (value,)  # noqa: RUF005 (Triton knows no star)
    return found


@triton.jit
def _windowed(out, x, w, SHAPE: tl.constexpr, SIZE: tl.constexpr, O_SIZE: tl.constexpr, O_STEPS: tl.constexpr,
              X_STEPS: tl.constexpr, W_STEPS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
              PADS: tl.constexpr, DILATION: tl.constexpr, SPAN: tl.constexpr, ADDS: tl.constexpr,
              ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    c = (tl.program_id(0) % SHAPE[1]).to(tl.int64)
    weights = _weights(w, c, W_STEPS, KERNEL)
    for turn in range(SPAN):
        b, h, start, rows = _tile(turn, SHAPE, SPAN, ROWS, COLS, WIDE)
        v = start + tl.arange(0, COLS)
        row, col = h * STRIDE[0] - PADS[0], v * STRIDE[1] - PADS[1]
        at = x + offset(b, c, row, col, X_STEPS)
        total = tl.zeros((ROWS, COLS), tl.float32)
        for i in tl.static_range(tl.constexpr(KERNEL[0])):
            for j in tl.static_range(tl.constexpr(KERNEL[1])):
                down, along = i * DILATION[0], j * DILATION[1]
                mask = within(rows, row + down, col + along, SIZE)
                value = tl.load(at + (down * X_STEPS[2] + along * X_STEPS[3]), mask=mask, other=0.0)
                total += value.to(tl.float32) * weights[i * KERNEL[1] + j]
        to = out + (b * O_STEPS[0] + c * O_STEPS[1] + h * O_STEPS[2])
        put(to, (total,), rows, start, O_SIZE[1], O_STEPS[3], ADDS)


@triton.jit
def _spread(out, dy, w, SHAPE: tl.constexpr, SIZE: tl.constexpr, O_SIZE: tl.constexpr, O_STEPS: tl.constexpr,
            X_STEPS: tl.constexpr, W_STEPS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
            PADS: tl.constexpr, DILATION: tl.constexpr, SPAN: tl.constexpr, ADDS: tl.constexpr,
            ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    c = (tl.program_id(0) % SHAPE[1]).to(tl.int64)
    weights = _weights(w, c, W_STEPS, KERNEL)
    for turn in range(SPAN):
        b, q, start, rows = _tile(turn, SHAPE, SPAN, ROWS, COLS, WIDE)
        p = start + tl.arange(0, COLS)
        at = dy + offset(b, c, q, p, X_STEPS)
        for phase in tl.static_range(tl.constexpr(STRIDE[0])):
            totals = ()
            for beside in tl.static_range(tl.constexpr(STRIDE[1])):
                total = tl.zeros((ROWS, COLS), tl.float32)
                for i in tl.static_range(tl.constexpr(KERNEL[0])):
                    for j in tl.static_range(tl.constexpr(KERNEL[1])):
                        if met(phase, i, STRIDE[0], PADS[0], DILATION[0]) and met(
                            beside, j, STRIDE[1], PADS[1], DILATION[1]
                        ):
                            down = (phase + PADS[0] - i * DILATION[0]) // STRIDE[0]
                            along = (beside + PADS[1] - j * DILATION[1]) // STRIDE[1]
                            mask = within(rows, q + down, p + along, SIZE)
                            slope = tl.load(at + (down * X_STEPS[2] + along * X_STEPS[3]), mask=mask, other=0.0)
                            total += slope.to(tl.float32) * weights[i * KERNEL[1] + j]
                totals = totals + (total,)  # noqa: RUF005 (Triton knows no star)
            row = q * STRIDE[0] + phase
            to = out + (b * O_STEPS[0] + c * O_STEPS[1] + row * O_STEPS[2])
            put(to, totals, rows & (row < O_SIZE[0]), start, O_SIZE[1], O_STEPS[3], ADDS)


@triton.jit
def _weighed(out, dy, x, SHAPE: tl.constexpr, SIZE: tl.constexpr, Y_STEPS: tl.constexpr, X_STEPS: tl.constexpr,
             KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, DILATION: tl.constexpr,
             SPAN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    c = (tl.program_id(0) % SHAPE[1]).to(tl.int64)
    totals = (tl.zeros((ROWS, COLS), tl.float32),) * (KERNEL[0] * KERNEL[1])
    for turn in range(SPAN):
        b, h, start, rows = _tile(turn, SHAPE, SPAN, ROWS, COLS, WIDE)
        v = start + tl.arange(0, COLS)
        row, col = h * STRIDE[0] - PADS[0], v * STRIDE[1] - PADS[1]
        slope = tl.load(dy + offset(b, c, h, v, Y_STEPS), mask=rows[:, None] & (v < SHAPE[3])[None, :], other=0.0).to(
            tl.float32
        )
        at = x + offset(b, c, row, col, X_STEPS)
        sums = ()
        for i in tl.static_range(tl.constexpr(KERNEL[0])):
            for j in tl.static_range(tl.constexpr(KERNEL[1])):
                down, along = i * DILATION[0], j * DILATION[1]
                mask = within(rows, row + down, col + along, SIZE)
                value = tl.load(at + (down * X_STEPS[2] + along * X_STEPS[3]), mask=mask, other=0.0)
                total = totals[i * KERNEL[1] + j] + value.to(tl.float32) * slope
                sums = sums + (total,)  # noqa: RUF005 (Triton knows no star)
        totals = sums
    out += tl.program_id(0).to(tl.int64) * (KERNEL[0] * KERNEL[1])
    for tap in tl.static_range(tl.constexpr(KERNEL[0] * KERNEL[1])):
        tl.store(out + tap, tl.sum(totals[tap]))

"""Gradients of what windows are weighed with: products of matrices whose summed places are looked up in what they met.

Places are divided among programs where tiles are too few for the chip, and what these summed is added up in its order.
It knows no array but as a View.
"""

# mypy: disable-error-code="no-untyped-def"

from math import prod
from typing import NamedTuple

import triton
from triton import language as tl

from castile.kernels.triton.contract import Tile
from castile.kernels.triton.correlation import Windows, on_tensor_cores, together
from castile.kernels.triton.launch import Launch, Room
from castile.kernels.triton.lines import Text, folded, packed
from castile.kernels.triton.views import View, wide

# Sums that the largest chip holds at once twice over: programs of small tiles are many.
_FILL = 296 * 64 * 128


class Parts(NamedTuple):
    """How the sum over the places of some samples is divided: into `num` runs of whole steps."""

    num: int
    span: int


def divided(dw: View, places: int, tile: Tile) -> Parts:
    """The parts of a sum over so many places for dw [g,m,c,r,s]."""
    tiles = dw.shape[0] * -(-dw.shape[1] // tile.m) * -(-prod(dw.shape[2:]) // tile.n)
    steps = -(-places // tile.k)
    most = _FILL // (tiles * min(64 * 128, tile.m * tile.n))
    span = -(-steps // max(1, min(most, steps // 8)))
    return Parts(-(-steps // span), span * tile.k)


def slopes(dw: View, dy: View, x: View, windows: Windows, tile: Tile, parts: Parts, adds: bool) -> Launch:
    """The launch that makes dw [part,g,m,c,r,s] of dy [b,g,m,h,w] and x [b,g,c,H,W], or adds it."""
    num_m, num_c = dw.shape[2:4]
    batch, groups, _, *lattice = dy.shape
    num_k = batch * prod(lattice)
    flat = x.steps[2] != 1
    across = -(-num_c * prod(windows.kernel) // tile.n) if flat else -(-num_c // tile.n) * prod(windows.kernel)
    args = (dw, dw.steps, dy, dy.steps, x, x.steps, num_m, num_c, num_k, parts.span, tuple(lattice), x.shape[3:])
    constants = {
        "FLAT": flat,
        "EVEN_M": num_m % tile.m == 0,
        "ADDS": adds,
        "WIDE": wide([dw, dy, x]) or num_k > 2**30,
        "PRECISION": tile.precision,
        "R": windows.kernel[0],
        "S": windows.kernel[1],
        "RUN": together(dy),
        "M": tile.m,
        "N": tile.n,
        "K": tile.k,
    }
    flops = 2 * num_k * groups * num_m * num_c * prod(windows.kernel)
    grid = (-(-num_m // tile.m) * across, groups, parts.num)
    told = (*args, windows.stride, windows.pads, windows.dilation)
    return Launch(_slopes, grid, told, constants, tile.warps, tile.stages, flops, on_tensor_cores(x, tile))


def summed(dw: View, pieces: Room, num: int, adds: bool) -> list[Launch]:
    """The launches that add up the parts of dw, which lie one after the other in `pieces`."""
    seen = View(pieces, (num, *dw.shape), packed((num, *dw.shape)))
    whole = folded(Text(("x",), (), (), ("x",)), [dw], [seen], (0,), {}, adds=adds)
    return whole.launches(whole.settings[0])


@triton.jit
def _slopes(out, o_steps, dy, y_steps, x, x_steps, num_m, num_c, num_k, span, lattice, inner, stride, pads, dilation,
            FLAT: tl.constexpr, EVEN_M: tl.constexpr, ADDS: tl.constexpr, WIDE: tl.constexpr,
            PRECISION: tl.constexpr, R: tl.constexpr, S: tl.constexpr, RUN: tl.constexpr, M: tl.constexpr,
            N: tl.constexpr, K: tl.constexpr):  # fmt: skip
    # Programs that run together read the same places.
    tiles = tl.cdiv(num_m, M)
    m = tl.program_id(0) % tiles * M + tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    if WIDE:
        m, n, k = m.to(tl.int64), n.to(tl.int64), k.to(tl.int64)
    block = tl.program_id(0) // tiles
    if FLAT:
        n += block * N
        c, i, j = n // (R * S), n // S % R, n % S
        down, along = (i * dilation[0])[None, :], (j * dilation[1])[None, :]
    else:
        blocks = tl.cdiv(num_c, N)
        n += block % blocks * N
        c, i, j = n, block // blocks // S, block // blocks % S
        down, along = i * dilation[0], j * dilation[1]
    in_m, in_n = (m < num_m)[:, None], (c < num_c)[None, :]
    group, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    dy += group * y_steps[1]
    x += (
        group * x_steps[1] + (c * x_steps[2] + i * (dilation[0] * x_steps[3]) + j * (dilation[1] * x_steps[4]))[None, :]
    )
    total = tl.zeros((M, N), tl.float32)
    for start in range(part * span, tl.minimum(part * span + span, num_k), K):
        here = start + k
        in_k = here < num_k
        h, v, b = here // lattice[1] % lattice[0], here % lattice[1], here // (lattice[0] * lattice[1])
        row, col = (h * stride[0] - pads[0])[:, None], (v * stride[1] - pads[1])[:, None]
        in_x = (row + down >= 0) & (row + down < inner[0]) & (col + along >= 0) & (col + along < inner[1])
        at_y = (b * y_steps[0] + h * y_steps[3] + v * y_steps[4])[:, None] + m[None, :] * y_steps[2]
        if RUN > 1:
            at_y = tl.max_contiguous(tl.multiple_of(at_y, (RUN, 1)), (RUN, 1))
        at_y = dy + at_y
        at_x = x + (b[:, None] * x_steps[0] + row * x_steps[3] + col * x_steps[4])
        if EVEN_M:
            slope = tl.load(at_y, mask=in_k[:, None], other=0.0)
        else:
            slope = tl.load(at_y, mask=in_k[:, None] & tl.trans(in_m), other=0.0)
        met = tl.load(at_x, mask=in_x & in_k[:, None] & in_n, other=0.0)
        total = tl.dot(tl.trans(slope), met, total, input_precision=PRECISION)
    out += part.to(tl.int64) * o_steps[0] + group * o_steps[1] + m[:, None] * o_steps[2]
    at = out + (c * o_steps[3] + i * o_steps[4] + j * o_steps[5])[None, :]
    if ADDS:
        total += tl.load(at, mask=in_m & in_n, other=0.0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=in_m & in_n)

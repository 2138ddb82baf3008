"""Weight gradients of convolutions, as matrix products summed over places, which are gathered from the input (no
im2col).

Where there are too few tiles to fill the chip the sum is split among programs (split-K), and the partial sums are added
up in order. It knows no array but as a View.
"""

# mypy: disable-error-code="no-untyped-def, assignment"

from math import prod
from typing import NamedTuple

import numpy as np
import triton
from triton import language as tl

from castile.kernels.triton.channels import workspace
from castile.kernels.triton.codegen import reduction_plan
from castile.kernels.triton.contract import Tile
from castile.kernels.triton.implicit_gemm import Windows, contiguous_run, uses_tensor_cores
from castile.kernels.triton.launch import Launch
from castile.kernels.triton.snippet import Snippet
from castile.kernels.triton.views import View, needs_64_bits

# Sums of programs of which an H200 holds two a processor at once: one more would have the chip to itself.
_FILL = 264 * 64 * 128
# Processors of an H200, and shared memory of each.
_PROCESSORS, _SHARED = 132, 232448
# Places of a plane up to which what steps in turn read of all images stays in the cache meanwhile.
_SMALL = 256


class SplitK(NamedTuple):
    """How the sum over the places of some samples is split: into `num` parts of `span` places."""

    num: int
    span: int


def split_k(dw: View, places: int, itemsize: int, tile: Tile, beside: int) -> SplitK:
    """How to split the sum over `places` for dw [g,m,c,r,s], in programs of `beside` elements of a window."""
    tiles = dw.shape[0] * -(-dw.shape[1] // tile.m) * -(-prod(dw.shape[2:]) // (tile.n * beside))
    steps = -(-places // tile.k)
    fit = _SHARED // tile.ahead(itemsize, beside)
    most = min(_FILL // min(64 * 128, tile.m * tile.n * beside), _PROCESSORS * max(1, fit)) // tiles
    span = -(-steps // max(1, min(most, steps // 8)))
    return SplitK(-(-steps // span), span * tile.k)


def partial_sums(dw: View, num: int, vectors: bool) -> View:
    """Workspace for `num` partial sums of dw, in which what a program stores is contiguous.

    With `vectors` these are channels: stores strided by the elements of a window would take longer than the sums.
    """
    return workspace((num, *dw.shape), (0, 1, 2, 4, 5, 3) if vectors else (0, 1, 2, 3, 4, 5))


def weight_gradient(
    dw: View, dy: View, x: View, windows: Windows, tile: Tile, beside: int, parts: SplitK, vectors: bool, adds: bool
) -> Launch:
    """The launch that computes dw [part,g,m,c,r,s] from dy [b,g,m,h,w] and x [b,g,c,H,W], or adds it.

    vectors  whether a program has vectors of channels and `beside` elements of a window's row (or column, if rows have
             one element), which divides that; otherwise channels and window elements are one dim
    """
    num_m, num_c = dw.shape[2:4]
    batch, groups, _, *lattice = dy.shape
    num_k = batch * prod(lattice)
    flat = not vectors
    across = (
        -(-num_c * prod(windows.kernel) // tile.n) if flat else -(-num_c // tile.n) * prod(windows.kernel) // beside
    )
    far = needs_64_bits([dw, dy, x]) or num_k > 2**30
    # Constants all: what is divided by them is in the loop.
    constants = {
        "O_STEPS": dw.steps,
        "Y_STEPS": dy.steps,
        "X_STEPS": x.steps,
        "NUM_M": num_m,
        "NUM_C": num_c,
        "NUM_K": num_k,
        "SPAN": parts.span,
        "LATTICE": tuple(lattice),
        "INNER": tuple(x.shape[3:]),
        "STRIDE": windows.stride,
        "PADS": windows.pads,
        "DILATION": windows.dilation,
        "OUTSIDE": windows.leave(tuple(lattice), tuple(x.shape[3:])),
        "EVEN_K": num_k % tile.k == 0,
        "EVEN_N": (num_c * prod(windows.kernel) if flat else num_c) % tile.n == 0,
        "FLAT": flat,
        "EVEN_M": num_m % tile.m == 0,
        "ADDS": adds,
        "WIDE": far,
        "PRECISION": tile.precision,
        "R": windows.kernel[0],
        "S": windows.kernel[1],
        "RUN": contiguous_run(dy),
        "IMAGES": batch if not far and _by_images(dy, x, tile) else 0,
        "BESIDE": beside,
        "M": tile.m,
        "N": tile.n,
        "K": tile.k,
    }
    flops = 2 * num_k * groups * num_m * num_c * prod(windows.kernel)
    grid = (-(-num_m // tile.m) * across, groups, parts.num)
    return Launch(
        _weight_gradient, grid, (dw, dy, x), constants, tile.warps, tile.stages, flops, uses_tensor_cores(x, tile),
        min_capability=tile.min_capability(np.dtype(x.array.dtype).itemsize, beside),
    )  # fmt: skip


def _by_images(dy: View, x: View, tile: Tile) -> bool:
    """Whether a step has one place of several images, whose position is computed once, instead of consecutive places.
    """
    whole = dy.shape[0] % tile.k == 0 and prod(dy.shape[3:]) <= _SMALL
    return whole and dy.steps[2] == x.steps[2] == 1


def sum_parts(dw: View, pieces: View, adds: bool) -> list[Launch]:
    """The launches that add up the partial sums of dw."""
    whole = reduction_plan(Snippet(("x",), (), (), ("x",)), [dw], [pieces], (0,), {}, adds=adds)
    return whole.launches(whole.settings[0])


@triton.jit
def _weight_gradient(out, dy, x, O_STEPS: tl.constexpr, Y_STEPS: tl.constexpr, X_STEPS: tl.constexpr,
                     NUM_M: tl.constexpr, NUM_C: tl.constexpr, NUM_K: tl.constexpr, SPAN: tl.constexpr,
                     LATTICE: tl.constexpr, INNER: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr,
                     DILATION: tl.constexpr, OUTSIDE: tl.constexpr, FLAT: tl.constexpr, EVEN_M: tl.constexpr,
                     EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, ADDS: tl.constexpr, WIDE: tl.constexpr,
                     PRECISION: tl.constexpr, R: tl.constexpr, S: tl.constexpr, RUN: tl.constexpr, IMAGES: tl.constexpr,
                     BESIDE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # fmt: skip
    # Programs that run together read the same places.
    tiles = tl.cdiv(NUM_M, M)
    m = tl.program_id(0) % tiles * M + tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    if WIDE:
        m, n, k = m.to(tl.int64), n.to(tl.int64), k.to(tl.int64)
    block = tl.program_id(0) // tiles
    if FLAT:
        n += block * N
        c, i, j = n // (R * S), n // S % R, n % S
        down, along = (i * DILATION[0])[None, :], (j * DILATION[1])[None, :]
    else:
        blocks = tl.cdiv(NUM_C, N)
        n += block % blocks * N
        first = block // blocks * BESIDE
        c, i, j = n, first // S, first % S
        down, along = i * DILATION[0], j * DILATION[1]
    in_m, in_n = (m < NUM_M)[:, None], (c < NUM_C)[None, :]
    group, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    dy += group * Y_STEPS[1]
    x += (
        group * X_STEPS[1] + (c * X_STEPS[2] + i * (DILATION[0] * X_STEPS[3]) + j * (DILATION[1] * X_STEPS[4]))[None, :]
    )
    # From one element of a program to the next: rows, columns, and how far that is.
    below: tl.constexpr = DILATION[0] if S == 1 else 0
    right: tl.constexpr = 0 if S == 1 else DILATION[1]
    apart: tl.constexpr = below * X_STEPS[3] + right * X_STEPS[4]
    totals = (tl.zeros((M, N), tl.float32),) * BESIDE
    for start in range(part * SPAN, tl.minimum(part * SPAN + SPAN, NUM_K), K):
        here = start + k
        in_k = (here < NUM_K)[:, None]
        row, col, at_y, at_x = _met(x, start, k, m, Y_STEPS, X_STEPS, LATTICE, STRIDE, PADS, IMAGES)
        if RUN > 1:
            at_y = tl.max_contiguous(tl.multiple_of(at_y, (RUN, 1)), (RUN, 1))
        at_y = dy + at_y
        if EVEN_M and EVEN_K:
            grad = tl.load(at_y)
        else:
            grad = tl.load(at_y, mask=in_k & tl.trans(in_m), other=0.0)
        sums = ()
        for tap in tl.static_range(BESIDE):
            mask = in_k
            if not EVEN_N:
                mask = mask & in_n
            if OUTSIDE:
                under, over = row + (down + tap * below), col + (along + tap * right)
                mask = mask & (under >= 0) & (under < INNER[0]) & (over >= 0) & (over < INNER[1])
            if EVEN_N and EVEN_K and not OUTSIDE:
                met = tl.load(at_x + tap * apart)
            else:
                met = tl.load(at_x + tap * apart, mask=mask, other=0.0)
            total = tl.dot(tl.trans(grad), met, totals[tap], input_precision=PRECISION)
            sums = sums + (total,)  # noqa: RUF005 (Triton knows no star)
        totals = sums
    out += part.to(tl.int64) * O_STEPS[0] + group * O_STEPS[1] + m[:, None] * O_STEPS[2]
    out += (c * O_STEPS[3] + i * O_STEPS[4] + j * O_STEPS[5])[None, :]
    for tap in tl.static_range(BESIDE):
        total, at = totals[tap], out + tap * (O_STEPS[4] if S == 1 else O_STEPS[5])
        if ADDS:
            total += tl.load(at, mask=in_m & in_n, other=0.0).to(tl.float32)
        tl.store(at, total.to(out.dtype.element_ty), mask=in_m & in_n)


@triton.jit
def _met(x, start, k, m, Y_STEPS: tl.constexpr, X_STEPS: tl.constexpr, LATTICE: tl.constexpr, STRIDE: tl.constexpr,
         PADS: tl.constexpr, IMAGES: tl.constexpr):  # fmt: skip
    """The rows and columns of x that a step sees, the offsets of its elements in dy, and their addresses in x.

    The order in which offsets are added decides how many registers it takes.
    """
    if IMAGES:
        # All of a step lies at one place, looked up once; with a remainder an A100 would leave out registers.
        place, b = start // IMAGES, (start % IMAGES + k)[:, None]
        h = place // LATTICE[1]
        v = place - h * LATTICE[1]
        row, col = h * STRIDE[0] - PADS[0], v * STRIDE[1] - PADS[1]
        at_y = (b * Y_STEPS[0] + m[None, :] * Y_STEPS[2]) + (h * Y_STEPS[3] + v * Y_STEPS[4])
        return row, col, at_y, x + b * X_STEPS[0] + (row * X_STEPS[3] + col * X_STEPS[4])
    else:
        here = start + k
        h, v, b = here // LATTICE[1] % LATTICE[0], here % LATTICE[1], here // (LATTICE[0] * LATTICE[1])
        row, col = (h * STRIDE[0] - PADS[0])[:, None], (v * STRIDE[1] - PADS[1])[:, None]
        at_y = (b * Y_STEPS[0] + h * Y_STEPS[3] + v * Y_STEPS[4])[:, None] + m[None, :] * Y_STEPS[2]
        return row, col, at_y, x + (b[:, None] * X_STEPS[0] + row * X_STEPS[3] + col * X_STEPS[4])

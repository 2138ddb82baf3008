"""Sums over windows as products of matrices that are not spread out in memory: a window's elements are looked up.

The way back to what the windows met is such a sum too: places whose distance is a multiple of the stride meet the same
elements of windows, so each program takes places of one such phase and the elements that these meet. It knows no array
but as a View.
"""

# mypy: disable-error-code="no-untyped-def"

from math import gcd, prod
from typing import NamedTuple

import numpy as np
import triton
from triton import language as tl

from castile.kernels.triton.contract import Tile
from castile.kernels.triton.launch import Launch
from castile.kernels.triton.views import View, power_of_two, wide
from castile.kernels.windows import Pair

# Bytes that a thread reads or writes at once.
_VECTOR = 16


class Windows(NamedTuple):
    """Rows and columns of a window, and how it lies: `pads` are those before the first row and column."""

    kernel: Pair
    stride: Pair
    pads: Pair
    dilation: Pair

    @property
    def steps(self) -> Pair:
        """From one row or column of a window to the next that a place of what is met meets."""
        first, second = (n // gcd(n, d) for n, d in zip(self.stride, self.dilation, strict=True))
        return first, second

    @property
    def shared(self) -> Pair:
        """What both stride and dilation are multiples of."""
        return gcd(self.stride[0], self.dilation[0]), gcd(self.stride[1], self.dilation[1])

    @property
    def inverse(self) -> Pair:
        """What the dilation, its shared factor left out, is multiplied by to be 1 modulo the steps."""
        first, second = (
            pow(d // n, -1, step) if step > 1 else 0
            for d, n, step in zip(self.dilation, self.shared, self.steps, strict=True)
        )
        return first, second

    @property
    def alone(self) -> bool:
        """Whether each window is one element, and each element has one."""
        return self.kernel == self.stride == (1, 1) and self.pads == (0, 0)

    def leave(self, size: tuple[int, ...], inner: tuple[int, ...]) -> bool:
        """Whether some of `size` windows meet what is outside of so many rows and columns."""
        each = zip(self.kernel, self.stride, self.pads, self.dilation, size, inner, strict=True)
        return any(pad != 0 or (num - 1) * step + (taps - 1) * gap >= most for taps, step, pad, gap, num, most in each)


def fitting(tile: Tile, m: int, n: int, k: int) -> Tile:
    """The tile, but no larger than what there is."""
    return tile._replace(
        m=min(tile.m, max(16, power_of_two(m))),
        n=min(tile.n, max(16, power_of_two(n))),
        k=min(tile.k, max(16, power_of_two(k))),
    )


def correlation(
    out: View, x: View, w: View, windows: Windows, tile: Tile, back: bool, vectors: bool, adds: bool
) -> Launch:
    """The launch that makes out [b,g,m,H,W] of x [b,g,c,h,w] and w [g,m,c,r,s], or adds it.

    With `back` the windows lie in out and x has what comes of them; else they lie in x. Without `vectors` of channels
    these are one with the elements of a window.
    """
    batch, groups, num_m, *size = out.shape
    num_c, inner = x.shape[2], x.shape[3:]
    lattice = tuple(-(-n // step) for n, step in zip(size, windows.stride, strict=True)) if back else tuple(size)
    num_n, phases = batch * prod(lattice), prod(windows.stride) if back else 1
    dilation = tuple(-d // n for d, n in zip(windows.dilation, windows.shared, strict=True))
    # Constants all: what is divided by them is in the loop.
    constants = {
        "O_STEPS": out.steps,
        "X_STEPS": x.steps,
        "W_STEPS": w.steps,
        "NUM_M": num_m,
        "NUM_C": num_c,
        "NUM_N": num_n,
        "LATTICE": lattice,
        "SIZE": tuple(size),
        "INNER": tuple(inner),
        "STRIDE": windows.stride,
        "PADS": windows.pads,
        "DILATION": windows.dilation,
        "MOVES": dilation if back else windows.dilation,
        "STEPS": windows.steps if back else (1, 1),
        "SHARED": windows.shared,
        "INVERSE": windows.inverse,
        "OUTSIDE": back or windows.leave(tuple(size), tuple(inner)),
        "BACK": back,
        "FLAT": not vectors,
        "EVEN": num_m % tile.m == 0 and num_c % tile.k == 0,
        "ADDS": adds,
        "WIDE": wide([out, x, w]) or num_n > 2**30,
        "PRECISION": tile.precision,
        "R": windows.kernel[0],
        "S": windows.kernel[1],
        "RUN": 1 if phases > 1 else together(out),
        "M": tile.m,
        "N": tile.n,
        "K": tile.k,
    }
    grid = (-(-num_m // tile.m) * -(-num_n // tile.n), groups, phases)
    # Each element of a window meets as many places as there are windows.
    flops = 2 * batch * groups * num_m * num_c * prod(windows.kernel) * prod(inner if back else size)
    return Launch(_correlate, grid, (out, x, w), constants, tile.warps, tile.stages, flops, on_tensor_cores(w, tile))


def together(out: View) -> int:
    """Places of [b,g,m,h,w] that lie together from each multiple of that number on; no more than a vector holds."""
    *apart, row, col = out.steps
    high, across = out.shape[3:]
    run = across * high if row == across else gcd(across, row)
    return gcd(_VECTOR // np.dtype(out.array.dtype).itemsize, run, *apart) if col == 1 else 1


def on_tensor_cores(x: View, tile: Tile) -> bool:
    """Whether products of such elements run there."""
    return str(x.array.dtype) != "float32" or tile.precision != "ieee"


@triton.jit
def _phase(first, pad, taps, stride, dilation, step, shared, inverse):
    """Which rows of windows a place meets: the first, how many, and the number of the window whose first row it is."""
    rest = ((first + pad) % stride + stride) % stride
    start = rest // shared * inverse % step
    num = tl.where(rest % shared == 0, tl.maximum((taps - start + step - 1) // step, 0), 0)
    return start, num, (first + pad - start * dilation) // stride


@triton.jit
def _correlate(out, x, w, O_STEPS: tl.constexpr, X_STEPS: tl.constexpr, W_STEPS: tl.constexpr, NUM_M: tl.constexpr,
               NUM_C: tl.constexpr, NUM_N: tl.constexpr, LATTICE: tl.constexpr, SIZE: tl.constexpr,
               INNER: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, DILATION: tl.constexpr,
               MOVES: tl.constexpr, STEPS: tl.constexpr, SHARED: tl.constexpr, INVERSE: tl.constexpr,
               OUTSIDE: tl.constexpr, BACK: tl.constexpr, FLAT: tl.constexpr, EVEN: tl.constexpr, ADDS: tl.constexpr,
               WIDE: tl.constexpr, PRECISION: tl.constexpr, R: tl.constexpr, S: tl.constexpr, RUN: tl.constexpr,
               M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # fmt: skip
    # Programs that run together share places; the weights are few and stay in the cache.
    tiles = tl.cdiv(NUM_M, M)
    m = tl.program_id(0) % tiles * M + tl.arange(0, M)
    n = tl.program_id(0) // tiles
    k = tl.arange(0, K)
    if WIDE:
        m, n, k = m.to(tl.int64), n.to(tl.int64), k.to(tl.int64)
    n = n * N + tl.arange(0, N)
    in_m, in_n = (m < NUM_M)[:, None], n < NUM_N
    h, v, b = n // LATTICE[1] % LATTICE[0], n % LATTICE[1], n // (LATTICE[0] * LATTICE[1])
    if BACK:
        first_h, first_v = tl.program_id(2) // STRIDE[1], tl.program_id(2) % STRIDE[1]
        r, num_r, base_h = _phase(first_h, PADS[0], R, STRIDE[0], DILATION[0], STEPS[0], SHARED[0], INVERSE[0])
        s, num_s, base_v = _phase(first_v, PADS[1], S, STRIDE[1], DILATION[1], STEPS[1], SHARED[1], INVERSE[1])
        row, col = h + base_h, v + base_v
        h, v = first_h + h * STRIDE[0], first_v + v * STRIDE[1]
        in_n = in_n & (h < SIZE[0]) & (v < SIZE[1])
        w += r * W_STEPS[3] + s * W_STEPS[4]
    else:
        num_r, num_s = R, S
        row, col = h * STRIDE[0] - PADS[0], v * STRIDE[1] - PADS[1]
    group = tl.program_id(1).to(tl.int64)
    w += group * W_STEPS[0] + m[:, None] * W_STEPS[1]
    # Places come first: where nothing is known to lie together, threads that are neighbours take neighbours of these.
    x += group * X_STEPS[1] + (b * X_STEPS[0] + row * X_STEPS[3] + col * X_STEPS[4])[:, None]
    row, col, in_n = row[:, None], col[:, None], in_n[:, None]
    total = tl.zeros((M, N), tl.float32)
    blocks = tl.cdiv(NUM_C, K)
    turns = tl.cdiv(NUM_C * num_r * num_s, K) if FLAT else blocks * num_r * num_s
    for turn in range(turns):
        if FLAT:
            here = turn * K + k
            c, i, j = here // (num_r * num_s), here // num_s % num_r, here % num_s
            down, along = (i * MOVES[0])[None, :], (j * MOVES[1])[None, :]
        else:
            c, i, j = turn % blocks * K + k, turn // blocks // num_s, turn // blocks % num_s
            down, along = i * MOVES[0], j * MOVES[1]
        in_x = in_n
        if OUTSIDE:
            in_x = in_x & (row + down >= 0) & (row + down < INNER[0]) & (col + along >= 0) & (col + along < INNER[1])
        at_w = w + (c * W_STEPS[2] + i * (STEPS[0] * W_STEPS[3]) + j * (STEPS[1] * W_STEPS[4]))[None, :]
        at_x = x + (c * X_STEPS[2] + i * (MOVES[0] * X_STEPS[3]) + j * (MOVES[1] * X_STEPS[4]))[None, :]
        if EVEN:
            held, met = tl.load(at_w), tl.load(at_x, mask=in_x, other=0.0)
        else:
            in_k = c < NUM_C
            held = tl.load(at_w, mask=in_m & in_k[None, :], other=0.0)
            met = tl.load(at_x, mask=in_x & in_k[None, :], other=0.0)
        total = tl.dot(held, tl.trans(met), total, input_precision=PRECISION)
    at = (b * O_STEPS[0] + h * O_STEPS[3] + v * O_STEPS[4])[:, None] + m[None, :] * O_STEPS[2]
    if RUN > 1:
        at = tl.max_contiguous(tl.multiple_of(at, (RUN, 1)), (RUN, 1))
    at = out + group * O_STEPS[1] + at
    here, total = in_n & tl.trans(in_m), tl.trans(total)
    if ADDS:
        total += tl.load(at, mask=here, other=0.0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=here)

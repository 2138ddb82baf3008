"""Convolution as an implicit GEMM: a matrix product whose second operand, the windows' elements, is never stored (no
im2col) but gathered as it is needed.

The input gradient is one too. Places whose distance is a multiple of the stride see the same window elements, so each
program takes places of one such phase and those elements; where columns are contiguous, of two phases of columns, as
memory sectors that are half written are read first. It knows no array but as a View.
"""

# mypy: disable-error-code="no-untyped-def, assignment, misc"

from math import gcd, prod
from typing import NamedTuple

import numpy as np
import triton
from triton import language as tl

from castile.kernels.triton.contract import Tile
from castile.kernels.triton.launch import Launch
from castile.kernels.triton.views import View, needs_64_bits, power_of_two
from castile.kernels.windows import Pair

# Bytes that a thread reads or writes at once.
_VECTOR = 16
# The fewest rows or columns of a product.
_LEAST = 16


class Windows(NamedTuple):
    """Rows and columns of a window, and how windows lie; `pads` are those before the first row and column."""

    kernel: Pair
    stride: Pair
    pads: Pair
    dilation: Pair

    @property
    def steps(self) -> Pair:
        """The distance of the rows, and of the columns, of a window that one place of the input sees."""
        first, second = (n // gcd(n, d) for n, d in zip(self.stride, self.dilation, strict=True))
        return first, second

    @property
    def shared(self) -> Pair:
        """The greatest common divisors of stride and dilation."""
        return gcd(self.stride[0], self.dilation[0]), gcd(self.stride[1], self.dilation[1])

    @property
    def inverse(self) -> Pair:
        """The inverse of the dilation, divided by the shared factor, modulo the steps."""
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
        """Whether some of `size` windows reach outside `inner` rows and columns."""
        each = zip(self.kernel, self.stride, self.pads, self.dilation, size, inner, strict=True)
        return any(pad != 0 or (num - 1) * step + (taps - 1) * gap >= most for taps, step, pad, gap, num, most in each)


def clipped(tile: Tile, m: int, n: int, k: int) -> Tile:
    """The tile, no larger than m x n x k."""
    return tile._replace(
        m=min(tile.m, max(_LEAST, power_of_two(m))),
        n=min(tile.n, max(_LEAST, power_of_two(n))),
        k=min(tile.k, max(_LEAST, power_of_two(k))),
    )


def implicit_gemm(
    out: View, x: View, w: View, windows: Windows, tile: Tile, back: bool, vectors: bool, adds: bool
) -> Launch:
    """The launch that computes out [b,g,m,H,W] from x [b,g,c,h,w] and w [g,m,c,r,s], or adds it.

    back     whether the windows lie over out and x is their gradient; otherwise they lie over x
    vectors  whether a step takes vectors of channels; otherwise channels and window elements are one dim
    """
    batch, groups, num_m, *size = out.shape
    num_c, inner = x.shape[2], x.shape[3:]
    lattice = tuple(-(-n // step) for n, step in zip(size, windows.stride, strict=True)) if back else tuple(size)
    each = _phases_beside(out, windows) if back else 1
    num_n, phases = batch * prod(lattice), prod(windows.stride) // each if back else 1
    # A tile's columns are those of all phases that it has.
    tile_n = max(_LEAST, tile.n // each)
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
        "WIDE": needs_64_bits([out, x, w]) or num_n > 2**30,
        "PRECISION": tile.precision,
        "R": windows.kernel[0],
        "S": windows.kernel[1],
        # Of two phases a row's last column may lie outside: no run goes on beyond a row.
        "RUN": gcd(contiguous_run(out), 0 if each == 1 else size[1]) if each > 1 or phases == 1 else 1,
        "EACH": each,
        "M": tile.m,
        "N": tile_n,
        "K": tile.k,
    }
    grid = (-(-num_m // tile.m) * phases * -(-num_n // tile_n), groups)
    # Each element of a window meets as many places as there are windows.
    flops = 2 * batch * groups * num_m * num_c * prod(windows.kernel) * prod(inner if back else size)
    since = tile.min_capability(np.dtype(x.array.dtype).itemsize)
    return Launch(
        _implicit_gemm,
        grid,
        (out, x, w),
        constants,
        tile.warps,
        tile.stages,
        flops,
        uses_tensor_cores(w, tile),
        min_capability=since,
    )


def _phases_beside(out: View, windows: Windows) -> int:
    """How many phases of columns a program takes: both of two if columns are contiguous and channels are not."""
    return 2 if windows.stride[1] == 2 and out.steps[4] == 1 and out.steps[2] != 1 else 1


def contiguous_run(out: View) -> int:
    """How many places of [b,g,m,h,w] are contiguous from each multiple of that number on, at most a vector."""
    *apart, row, col = out.steps
    high, across = out.shape[3:]
    run = across * high if row == across else gcd(across, row)
    return gcd(_VECTOR // np.dtype(out.array.dtype).itemsize, run, *apart) if col == 1 else 1


def is_scattered(out: View, windows: Windows) -> bool:
    """Whether places of [b,g,m,h,w] are not contiguous, or too few for a vector where windows have several elements."""
    run = contiguous_run(out)
    return run == 1 or (prod(windows.kernel) > 1 and run * np.dtype(out.array.dtype).itemsize < _VECTOR)


def has_vectors(w: View, out: View, windows: Windows) -> bool:
    """Whether weights [g,m,c,r,s] for out [b,g,m,h,w] are loaded well as they lie.

    Where m is contiguous in both, a thread takes so many registers that a multiprocessor holds one program, not two.
    """
    return w.steps[2] == 1 or (w.steps[1] == 1 and (windows.alone or out.steps[2] != 1))


def uses_tensor_cores(x: View, tile: Tile) -> bool:
    """Whether products of these elements run on tensor cores."""
    return str(x.array.dtype) != "float32" or tile.precision != "ieee"


@triton.jit
def _phase(first, pad, taps, stride, dilation, step, shared, inverse):
    """The rows of windows that a place sees: the first, how many, and the number of the window of which it is the first
    row.
    """
    rest = ((first + pad) % stride + stride) % stride
    start = rest // shared * inverse % step
    num = tl.where(rest % shared == 0, tl.maximum((taps - start + step - 1) // step, 0), 0)
    return start, num, (first + pad - start * dilation) // stride


@triton.jit
def _tile(number, LATTICE: tl.constexpr, EACH: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr):
    """The image, the row, and the column (of EACH times as many) of each place of a tile."""
    across: tl.constexpr = LATTICE[1] * EACH
    n = tl.arange(0, N * EACH)
    if WIDE:
        n, number = n.to(tl.int64), number.to(tl.int64)
    n += number * (N * EACH)
    return n // (LATTICE[0] * across), n // across % LATTICE[0], n % across


@triton.jit
def _summed(x, w, row, col, in_n, in_m, num_r, num_s, X_STEPS: tl.constexpr, W_STEPS: tl.constexpr,
            NUM_C: tl.constexpr, INNER: tl.constexpr, MOVES: tl.constexpr, STEPS: tl.constexpr,
            OUTSIDE: tl.constexpr, FLAT: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
            PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # fmt: skip
    """The sums of a tile, as [N,M], over num_r rows and num_s columns of windows, which see `row` and `col` first."""
    k = tl.arange(0, K)
    if WIDE:
        k = k.to(tl.int64)
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
    return tl.trans(total)


@triton.jit
def _implicit_gemm(out, x, w, O_STEPS: tl.constexpr, X_STEPS: tl.constexpr, W_STEPS: tl.constexpr, NUM_M: tl.constexpr,
                   NUM_C: tl.constexpr, NUM_N: tl.constexpr, LATTICE: tl.constexpr, SIZE: tl.constexpr,
                   INNER: tl.constexpr, STRIDE: tl.constexpr, PADS: tl.constexpr, DILATION: tl.constexpr,
                   MOVES: tl.constexpr, STEPS: tl.constexpr, SHARED: tl.constexpr, INVERSE: tl.constexpr,
                   OUTSIDE: tl.constexpr, BACK: tl.constexpr, FLAT: tl.constexpr, EVEN: tl.constexpr,
                   ADDS: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
                   RUN: tl.constexpr, EACH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
                   K: tl.constexpr):  # fmt: skip
    # Programs that run together share places, and sectors of rows; the weights are few and stay in the cache.
    tiles = tl.cdiv(NUM_M, M)
    m = tl.program_id(0) % tiles * M + tl.arange(0, M)
    if WIDE:
        m = m.to(tl.int64)
    across: tl.constexpr = STRIDE[1] // EACH
    phases: tl.constexpr = STRIDE[0] * across if BACK else 1
    phase, number = tl.program_id(0) // tiles % phases, tl.program_id(0) // tiles // phases
    phase_h, phase_v = phase // across, phase % across
    group = tl.program_id(1).to(tl.int64)
    b, h, v = _tile(number, LATTICE, 1, WIDE, N)
    in_m, in_n = (m < NUM_M)[:, None], b * (LATTICE[0] * LATTICE[1]) < NUM_N
    w += group * W_STEPS[0] + m[:, None] * W_STEPS[1]
    x += group * X_STEPS[1]
    totals = ()
    for beside in tl.static_range(EACH):
        if BACK:
            r, num_r, base_h = _phase(phase_h, PADS[0], R, STRIDE[0], DILATION[0], STEPS[0], SHARED[0], INVERSE[0])
            s, num_s, base_v = _phase(
                phase_v + beside, PADS[1], S, STRIDE[1], DILATION[1], STEPS[1], SHARED[1], INVERSE[1]
            )
            row, col = h + base_h, v + base_v
            there = in_n & (phase_h + h * STRIDE[0] < SIZE[0]) & (phase_v + beside + v * STRIDE[1] < SIZE[1])
            of = w + (r * W_STEPS[3] + s * W_STEPS[4])
        else:
            num_r, num_s, there, of = R, S, in_n, w
            row, col = h * STRIDE[0] - PADS[0], v * STRIDE[1] - PADS[1]
        # Places come first: where nothing is known to lie together, neighbouring threads take neighbours of these.
        at = x + (b * X_STEPS[0] + row * X_STEPS[3] + col * X_STEPS[4])[:, None]
        total = _summed(at, of, row[:, None], col[:, None], there[:, None], in_m, num_r, num_s, X_STEPS, W_STEPS,
                        NUM_C, INNER, MOVES, STEPS, OUTSIDE, FLAT, EVEN, WIDE, PRECISION, M, N, K)  # fmt: skip
        totals = totals + (total,)  # noqa: RUF005 (Triton knows no star)
    total = totals[0]
    if EACH == 2:
        total = tl.reshape(tl.permute(tl.join(totals[0], totals[1]), (0, 2, 1)), (2 * N, M))
    b, h, v = _tile(number, LATTICE, EACH, WIDE, N)
    here = b * (LATTICE[0] * LATTICE[1]) < NUM_N
    if BACK:
        h, v = phase_h + h * STRIDE[0], phase_v + v * across
        here = here & (h < SIZE[0]) & (v < SIZE[1])
    at = (b * O_STEPS[0] + h * O_STEPS[3] + v * O_STEPS[4])[:, None] + m[None, :] * O_STEPS[2]
    here = here[:, None] & tl.trans(in_m)
    if RUN > 1:
        at = tl.max_contiguous(tl.multiple_of(at, (RUN, 1)), (RUN, 1))
    elif O_STEPS[2] != 1:
        # Nothing is known to lie together, and by rows and columns Triton 3.9 would have threads side by side take
        # neighbouring channels where 3.6 takes places: one behind the other they are the same to both.
        at, here, total = tl.ravel(tl.trans(at)), tl.ravel(tl.trans(here)), tl.ravel(tl.trans(total))
    at = out + group * O_STEPS[1] + at
    if ADDS:
        total += tl.load(at, mask=here, other=0.0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=here)

"""Tiles of rows and columns of images, as programs walk them that look up what lies around each place.

A thread has one place: what lies beside it in memory is then its neighbours', and a load of any place near by takes
whole lines. Shapes, steps and windows are constants to the compiler, so that little is left to compute for an element.
It knows no kernel.
"""

# mypy: disable-error-code="no-untyped-def"

from math import prod

import triton
from triton import language as tl

from castile.kernels.triton.views import power_of_two

_COLS = 128
_THREADS = 32


def block(threads: int, rows: int, cols: int) -> tuple[int, int]:
    """Rows and columns of a tile of so many places: as wide as an image where that is narrow, no taller than all."""
    across = min(threads, _COLS, power_of_two(cols))
    return min(threads // across, power_of_two(rows)), across


def warps(tile: tuple[int, int]) -> int:
    """As many as give each place a thread."""
    return max(1, prod(tile) // _THREADS)


@triton.constexpr_function
def met(phase, tap, stride, pad, dilation=1):
    """Whether places whose number is `phase` modulo the stride meet that row or column of a window."""
    return (phase + pad - tap * dilation) % stride == 0


@triton.jit
def first_column(SHAPE: tl.constexpr, COLS: tl.constexpr):
    """Where the tile of a program begins along the last dim."""
    return tl.program_id(0) % ((SHAPE[3] + COLS - 1) // COLS) * COLS


@triton.jit
def tile(SHAPE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):
    """Of a program's places in an array of four dims: the numbers in each dim, and which rows there are."""
    across: tl.constexpr = (SHAPE[3] + COLS - 1) // COLS
    number = tl.program_id(0)
    if WIDE:
        number = number.to(tl.int64)
    row, col = number // across * ROWS + tl.arange(0, ROWS), first_column(SHAPE, COLS) + tl.arange(0, COLS)
    image = row // SHAPE[2]
    return image // SHAPE[1], image % SHAPE[1], row % SHAPE[2], col, row < SHAPE[0] * SHAPE[1] * SHAPE[2]


@triton.jit
def offset(b, c, row, col, STEPS: tl.constexpr):
    """How far from the first element of an array of four dims those of a tile lie."""
    return (b * STEPS[0] + c * STEPS[1] + row * STEPS[2])[:, None] + (col * STEPS[3])[None, :]


@triton.jit
def within(rows, row, col, SIZE: tl.constexpr):
    """Whether rows that there are, and columns, lie inside an image."""
    return (rows & (row >= 0) & (row < SIZE[0]))[:, None] & ((col >= 0) & (col < SIZE[1]))[None, :]


@triton.jit
def put(out, values, rows, start, WIDTH: tl.constexpr, STEP: tl.constexpr, ADDS: tl.constexpr):
    """Write or add the values of each phase of columns, of the lattice's from `start` on, to rows that begin at `out`;
    where there are two phases neighbours are written together.
    """
    ROWS: tl.constexpr = values[0].shape[0]
    COLS: tl.constexpr = values[0].shape[1]
    if len(values) == 2:
        value = tl.reshape(tl.join(values[0], values[1]), (ROWS, 2 * COLS))
        _put(out, value, rows, start * 2 + tl.arange(0, 2 * COLS), WIDTH, STEP, ADDS)
    else:
        for n in tl.static_range(len(values)):
            _put(out, values[n], rows, (start + tl.arange(0, COLS)) * len(values) + n, WIDTH, STEP, ADDS)


@triton.jit
def _put(out, value, rows, col, WIDTH: tl.constexpr, STEP: tl.constexpr, ADDS: tl.constexpr):
    at, here = out[:, None] + (col * STEP)[None, :], rows[:, None] & (col < WIDTH)[None, :]
    if ADDS:
        value += tl.load(at, mask=here, other=0.0).to(tl.float32)
    tl.store(at, value.to(out.dtype.element_ty), mask=here)

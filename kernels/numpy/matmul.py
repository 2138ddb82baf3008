"""Matrix products in register tiles. Operands are used in place, but for a panel of the second one.

It knows no contraction. A panel has as many columns of the second operand as a tile is wide, and as many of its rows as
near caches hold; all rows of the first operand are multiplied by it before the next one is packed.
"""

from functools import partial
from math import inf, prod
from typing import NamedTuple

import numpy as np

from castile.kernels.calls import Call
from castile.kernels.numpy.jit import compiled, inlined
from castile.kernels.numpy.pointers import BLOCK, after, copy_run, pointer, spares
from castile.kernels.numpy.tiles import ROWS, SQUARE, lanes, tile_panel, transpose_square
from castile.kernels.numpy.views import flat

Sizes = tuple[int, int, int]

# Vectors of a tile, rows of a panel, and blocks of working memory that hold a tile.
_VECTORS, _DEPTH, _SUMS = 3, 256, 1

# Of so few rows a panel is met so seldom that it is read where it lies, if its columns lie side by side.
_SELDOM = 64

# Numbers of a plan before the places of matrices.
_HEAD = 15

# In operations of whole vectors: what a call of BLAS takes beside its work, and how many it takes for each that a tile
# takes, also where both operands have what is summed side by side. Measured on a Zen 4 in float32, with vectors of 64
# bytes and of 32: of the latter there are too few registers for tiles as good as those of BLAS.
_CALL = 2500
_PLAIN, _STRIDED = (1.25, 1.75) if lanes(4) == 16 else (0.85, 0.95)

# Of more terms BLAS packs both operands, unless one is a vector; for few rows or columns that takes more than the sums.
# Beside tiles of vectors of 32 bytes that is no loss: they read half of a cache line where depth is large.
_UNPACKED = 10**6 if lanes(4) == 16 else inf

# There is more to gain by packing where there are more terms, and more rows and columns.
_LARGE, _WIDE = 1 << 24, 64


class HalfSpace(NamedTuple):
    """The wanted terms of products x[i, k] * y[k, j]: those with i * I + j * J + k * K + first >= 0.

    signs  I, J and K, each 1, 0 or -1
    All other terms are zero, and results without a wanted term need not be written.
    """

    signs: tuple[int, int, int] = (0, 0, 0)
    first: int = 0

    @property
    def transposed(self) -> "HalfSpace":
        """Of the product of y and x."""
        i, j, k = self.signs
        return HalfSpace((j, i, k), self.first)


ALL = HalfSpace()

_three, _two, _one = tile_panel(ROWS, 3), tile_panel(ROWS, 2), tile_panel(ROWS, 1)


def blas_cost(sizes: Sizes, strided: bool, num: int, itemsize: int) -> float:
    """The expected cost of one of `num` products of i x k and k x j elements by BLAS, in vector operations.

    sizes    of i, j and k
    strided  whether both operands have k contiguous
    """
    rows, cols, depth = sizes
    packed = (rows + cols) * depth if prod(sizes) > _UNPACKED and min(rows, cols) > 1 else 0
    return prod(sizes) / lanes(itemsize) * (_STRIDED if strided else _PLAIN) + packed + _CALL / num


def tile_cost(sizes: Sizes, packs: bool, scatters: bool, itemsize: int) -> float:
    """The expected cost of one of `products`, in vector operations; infinite where BLAS is always better.

    packs     whether the second operand's columns are not contiguous
    scatters  whether those of the result are not
    """
    rows, cols, depth = sizes
    if prod(sizes) > _LARGE and min(rows, cols) > _WIDE:
        return inf
    tiles = -(-rows // ROWS) * ROWS * -(-cols // lanes(itemsize)) * depth
    return tiles + packs * cols * depth + scatters * rows * cols


def products(
    out: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    sizes: Sizes,
    steps: tuple[int, int, int, int, int, int],
    places: np.ndarray,
    wanted: HalfSpace = ALL,
) -> Call:
    """The call that computes out[i, j] = sum over k of x[i, k] * y[k, j], or +=, for many matrices in three arrays.

    sizes   of i, j and k, each 1 or more
    steps   in elements: of out along i and j, of x along i and k, of y along k and j
    places  [num, 4]: offsets of a product's matrices in out, x and y in elements, and 1 where it is added, else 0
    wanted  tiles without a wanted term are skipped, and other sums are shortened to their wanted terms
    """
    plan = np.array([*sizes, *steps, lanes(out.itemsize), len(places), *wanted.signs, wanted.first], np.int64)
    return partial(_products, np.concatenate([plan, places.reshape(-1)]), *(flat(one, 0, 1) for one in (out, x, y)))


@compiled
def _products(plan, out, x, y):  # type: ignore[no-untyped-def]
    lanes, num = plan[9], plan[10]
    numbers, held, sums = pointer(plan), spares(out, _VECTORS * lanes * _DEPTH // BLOCK), spares(out, _SUMS)
    for n in range(num):
        at = after(numbers, _HEAD + 4 * n)
        to, a, b = after(pointer(out), at[0]), after(pointer(x), at[1]), after(pointer(y), at[2])
        _product(numbers, to, a, b, at[3], held, sums)


@inlined
def _product(plan, out, x, y, adds, held, sums):  # type: ignore[no-untyped-def]
    rows, cols, depth, row, col, x_row, x_col, y_row, y_col, lanes = (
        plan[0], plan[1], plan[2], plan[3], plan[4], plan[5], plan[6], plan[7], plan[8], plan[9],
    )  # fmt: skip
    for low in range(0, depth, _DEPTH):
        num = min(_DEPTH, depth - low)
        left = 0
        while left < cols:
            rest = cols - left
            # two tiles of two vectors take less than one of three and one of one
            width = 2 * lanes if 3 * lanes < rest <= 4 * lanes else min(3 * lanes, rest)
            first, seen, down = after(x, low * x_col), after(y, low * y_row + left * y_col), y_row
            if y_col != 1 or rows > _SELDOM:
                _pack(held, width, seen, y_row, y_col, num)
                seen, down = held, width
            for i in range(0, rows, ROWS):
                high = min(ROWS, rows - i)
                begin, end = _wanted_terms(plan, (i, high), (left, width), (low, num))
                if begin == end:
                    continue
                to, a = after(out, i * row + left * col), after(first, i * x_row + begin * x_col)
                b, terms = after(seen, begin * down), end - begin
                goal, step, more = (to, row, adds) if col == 1 else (sums, width, 0)
                if width > 2 * lanes:
                    _three(goal, step, a, x_row, x_col, b, down, terms, high, width, more)
                elif width > lanes:
                    _two(goal, step, a, x_row, x_col, b, down, terms, high, width, more)
                else:
                    _one(goal, step, a, x_row, x_col, b, down, terms, high, width, more)
                if col != 1:
                    _copy_out(to, row, col, sums, high, width, adds)
            left += width
        adds = 1


@inlined
def _wanted_terms(plan, rows, cols, terms):  # type: ignore[no-untyped-def]
    """The first and the last of these terms of a tile that are wanted; at least one if the tile has wanted results.

    rows, cols, terms  pairs of the first and the number
    """
    by_row, by_col, by_term, most = plan[11], plan[12], plan[13], plan[14]
    most += by_row * rows[0] + max(0, by_row * (rows[1] - 1)) + by_col * cols[0] + max(0, by_col * (cols[1] - 1))
    begin, end = 0, terms[1]
    if by_term < 0:
        end = max(1, min(end, most + 1 - terms[0]))
    elif by_term > 0:
        begin = max(0, min(end - 1, -most - terms[0]))
    elif most < 0:
        end = 0
    return begin, end


@inlined
def _copy_out(out, row, col, sums, high, width, adds):  # type: ignore[no-untyped-def]
    """out[i * row + j * col] = sums[i * width + j], or +=."""
    squares = width // SQUARE * SQUARE if high == SQUARE and row == 1 and adds == 0 else 0
    for j in range(0, squares, SQUARE):
        transpose_square(after(out, j * col), col, after(sums, j), width)
    for j in range(squares, width):
        for i in range(high):
            place = i * row + j * col
            out[place] = out[place] + sums[i * width + j] if adds else sums[i * width + j]


@inlined
def _pack(held, width, y, row, col, num):  # type: ignore[no-untyped-def]
    """held[k * width + j] = y[k * row + j * col] for num k and width j."""
    if col == 1:
        for k in range(num):
            copy_run(after(held, k * width), after(y, k * row), width)
        return
    high, wide = (num // SQUARE * SQUARE, width // SQUARE * SQUARE) if row == 1 else (0, 0)
    for j in range(0, wide, SQUARE):
        for k in range(0, high, SQUARE):
            transpose_square(after(held, k * width + j), width, after(y, k + j * col), col)
    for k in range(num):
        for j in range(wide if k < high else 0, width):
            held[k * width + j] = y[k * row + j * col]

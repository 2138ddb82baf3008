"""Products of matrices in register tiles. Operands stay where they lie, but for a panel of the second one.

It knows no contraction. A panel is as many columns of the second operand as a tile has lanes, and as many of its rows
as near caches hold; all rows of the first operand meet it before the next one comes.
"""

from functools import partial

import numpy as np

from castile.kernels.calls import Call
from castile.kernels.numpy.jit import compiled, inlined
from castile.kernels.numpy.lanes import BLOCK, after, copy_run, pointer, spares
from castile.kernels.numpy.tiles import ROWS, SQUARE, lanes, panel, turn_square
from castile.kernels.numpy.views import flat

# Vectors of a tile, and rows of a panel.
_VECTORS, _DEPTH = 3, 256

# Of so few rows a panel is met so seldom that it is read where it lies, if its columns lie side by side.
_SELDOM = 64

# Numbers of a plan before the places of matrices.
_HEAD = 10

# In operations of whole vectors: what a call of BLAS takes beside its work, and how many it takes for each that the
# work needs, where columns of the second operand lie side by side and where not. Measured on a Zen 4 in float32.
_CALL, _PLAIN, _STRIDED = 2500, 1.25, 1.75

# BLAS packs both operands, which pays where there are more terms.
_LARGE = 1 << 24

_three, _two, _one = panel(ROWS, 3), panel(ROWS, 2), panel(ROWS, 1)


def quicker(sizes: tuple[int, int, int], side_by_side: bool, num: int, itemsize: int) -> bool:
    """Whether so many products of i x k and k x j elements are expected to take less here than by BLAS.

    sizes         of i, j and k
    side_by_side  whether columns of the second operand lie so
    """
    rows, cols, depth = sizes
    if rows * cols * depth > _LARGE:
        return False
    width = lanes(itemsize)
    packing = 0 if side_by_side else cols * depth
    ours = -(-rows // ROWS) * ROWS * -(-cols // width) * depth + packing
    theirs = rows * cols * depth / width * (_PLAIN if side_by_side else _STRIDED) + _CALL / num
    return ours < theirs


def products(
    out: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    sizes: tuple[int, int, int],
    steps: tuple[int, int, int, int, int],
    places: np.ndarray,
) -> Call:
    """The work of out[i, j] = sum over k of x[i, k] * y[k, j], or +=, for many matrices in three arrays of one dtype.

    sizes   of i, j and k, each 1 or more
    steps   in elements: of out along i (along j its elements lie side by side), of x along i and k, of y along k and j
    places  [num, 4]: how many elements after the first ones of out, x and y a product's matrices begin, and 1 where it
            is added to what is there, else 0
    """
    plan = np.array([*sizes, *steps, lanes(out.itemsize), len(places)], np.int64)
    return partial(_products, np.concatenate([plan, places.reshape(-1)]), *(flat(one, 0, 1) for one in (out, x, y)))


@compiled
def _products(plan, out, x, y):  # type: ignore[no-untyped-def]
    numbers, held = pointer(plan), spares(out, _VECTORS * plan[8] * _DEPTH // BLOCK)
    for n in range(plan[9]):
        at = after(numbers, _HEAD + 4 * n)
        _product(numbers, after(pointer(out), at[0]), after(pointer(x), at[1]), after(pointer(y), at[2]), at[3], held)


@inlined
def _product(plan, out, x, y, adds, held):  # type: ignore[no-untyped-def]
    rows, cols, depth, step, x_row, x_col, y_row, y_col, lanes = (
        plan[0], plan[1], plan[2], plan[3], plan[4], plan[5], plan[6], plan[7], plan[8],
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
                to, a, high = after(out, i * step + left), after(first, i * x_row), min(ROWS, rows - i)
                if width > 2 * lanes:
                    _three(to, step, a, x_row, x_col, seen, down, num, high, width, adds)
                elif width > lanes:
                    _two(to, step, a, x_row, x_col, seen, down, num, high, width, adds)
                else:
                    _one(to, step, a, x_row, x_col, seen, down, num, high, width, adds)
            left += width
        adds = 1


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
            turn_square(after(held, k * width + j), width, after(y, k + j * col), col)
    for k in range(num):
        for j in range(wide if k < high else 0, width):
            held[k * width + j] = y[k * row + j * col]

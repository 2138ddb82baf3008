"""Products of matrices in register tiles, of operands that stay where they lie: nothing is packed but a panel of one.

It knows no contraction. A panel is as many columns of the second operand as a tile has lanes, and as many of its rows
as the nearest caches hold; all rows of the first meet it before the next.
"""

from functools import partial

import numpy as np

from castile.kernels.calls import Call
from castile.kernels.numpy.jit import compiled, inlined
from castile.kernels.numpy.lanes import after, copy_run, pointer, spares, BLOCK
from castile.kernels.numpy.tiles import ROWS, SQUARE, lanes, panel, turn_square
from castile.kernels.numpy.views import flat

# Numbers of a product before the places of its matrices: rows, columns, what is summed, steps, lanes.
_HEAD = 10

# What is summed at once: a panel of so many rows stays in the second-level cache.
_DEPTH = 256

# Fewer rows of a tile than this are worked on alone.
_FEW = 3

# Of as few rows a panel is met so seldom that it is read where it lies.
_SELDOM = 64

_full3, _full2, _full1 = panel(ROWS, 3), panel(ROWS, 2), panel(ROWS, 1)
_lone3, _lone2, _lone1 = panel(1, 3), panel(1, 2), panel(1, 1)


# What a call of BLAS takes beside its work, and how much longer than as many full vectors its products do: of a second
# operand whose columns are strided, and of others. In operations of vectors, as measured on a Zen 4.
_CALL, _STRIDED, _PLAIN = 2500, 1.75, 1.25

# Products of more terms are left to BLAS, which packs both operands.
_LARGE = 1 << 24


def quicker(sizes: tuple[int, int, int], in_rows: bool, num: int) -> bool:
    """Whether `num` products of these sizes are expected to take less here than by BLAS.

    in_rows  whether columns of the second operand lie side by side
    """
    rows, cols, depth = sizes
    if rows * cols * depth > _LARGE:
        return False
    width = lanes(4)
    alone = rows % ROWS if rows % ROWS < _FEW else 0
    # the sums of a row that is alone wait for each other
    lines = -(-(rows - alone) // ROWS) * ROWS + 4 * alone
    ours = lines * -(-cols // width) * depth + (0 if in_rows else cols * depth)
    theirs = rows * cols * depth / width * (_PLAIN if in_rows else _STRIDED) + _CALL / num
    return ours < theirs


def products(
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
    sizes: tuple[int, int, int],
    steps: tuple[int, int, int, int, int],
    places: np.ndarray,
) -> Call:
    """The work of out[i, j] = sum over k of x[i, k] * y[k, j], or +=, of many such matrices in (out, x, y).

    sizes   of i, j and k, each 1 or more
    steps   in elements: of out along i, along j always 1; of x along i and k; of y along k and j
    places  [num, 4]: where in out, x and y the first elements of a product's matrices lie, counted in elements from
            those of the arrays, and 1 where it is added to what is there
    """
    plan = np.array([*sizes, *steps, lanes(arrays[0].itemsize), len(places)], np.int64)
    return partial(_products, np.concatenate([plan, places.reshape(-1)]), *(flat(x, 0, 1) for x in arrays))


@compiled
def _products(plan, out, x, y):  # type: ignore[no-untyped-def]
    numbers, held = pointer(plan), spares(out, 3 * _DEPTH * 16 // BLOCK)
    for n in range(plan[9]):
        at = after(numbers, _HEAD + 4 * n)
        _product(numbers, after(pointer(out), at[0]), after(pointer(x), at[1]), after(pointer(y), at[2]), at[3], held)


@inlined
def _product(plan, out, x, y, adds, held):  # type: ignore[no-untyped-def]
    rows, cols, depth, step, x_row, x_col, y_row, y_col = plan[0], plan[1], plan[2], plan[3], plan[4], plan[5], plan[6], plan[7]
    lanes = plan[8]
    for low in range(0, depth, _DEPTH):
        num = min(_DEPTH, depth - low)
        left = 0
        while left < cols:
            rest = cols - left
            # two halves of four vectors take less than three and one
            width = 2 * lanes if 3 * lanes < rest <= 4 * lanes else min(3 * lanes, rest)
            seen, down = after(y, low * y_row + left * y_col), y_row
            if y_col != 1 or rows > _SELDOM:
                _pack(held, width, seen, y_row, y_col, num, width)
                seen, down = held, width
            to, first = after(out, left), after(x, low * x_col)
            i = 0
            while i < rows:
                high = min(ROWS, rows - i)
                high = high if high >= _FEW else 1
                _tile(after(to, i * step), step, after(first, i * x_row), x_row, x_col, seen, down, num, high, width, adds, lanes)
                i += high
            left += width
        adds = 1


@inlined
def _tile(out, step, x, x_row, x_col, y, y_row, num, high, width, adds, lanes):  # type: ignore[no-untyped-def]
    if high == 1:
        if width > 2 * lanes:
            _lone3(out, step, x, x_row, x_col, y, y_row, num, high, width, adds)
        elif width > lanes:
            _lone2(out, step, x, x_row, x_col, y, y_row, num, high, width, adds)
        else:
            _lone1(out, step, x, x_row, x_col, y, y_row, num, high, width, adds)
    elif width > 2 * lanes:
        _full3(out, step, x, x_row, x_col, y, y_row, num, high, width, adds)
    elif width > lanes:
        _full2(out, step, x, x_row, x_col, y, y_row, num, high, width, adds)
    else:
        _full1(out, step, x, x_row, x_col, y, y_row, num, high, width, adds)


@inlined
def _pack(held, step, y, y_row, y_col, rows, cols):  # type: ignore[no-untyped-def]
    """held[k * step + j] = y[k * y_row + j * y_col]."""
    if y_col == 1:
        for k in range(rows):
            copy_run(after(held, k * step), after(y, k * y_row), cols)
        return
    squares = (rows // SQUARE * SQUARE, cols // SQUARE * SQUARE) if y_row == 1 else (0, 0)
    for j in range(0, squares[1], SQUARE):
        for k in range(0, squares[0], SQUARE):
            turn_square(after(held, k * step + j), step, after(y, k + j * y_col), y_col)
    for k in range(rows):
        for j in range(squares[1] if k < squares[0] else 0, cols):
            held[k * step + j] = y[k * y_row + j * y_col]

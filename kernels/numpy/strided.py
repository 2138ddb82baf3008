"""Elementwise loops over strided arrays: a compiled loop sees contiguous blocks, whatever the strides of the arrays.

It knows no kernel. A kernel written for it reads

    plan, p_out, p_x = pointer(walk), pointer(out), pointer(x)
    s_out, s_x = after(plan, FIRST), after(plan, SECOND)
    a, b = spare(out), spare(x)
    for first in range(0, num_rows(plan), plan[4]):
        o, v = room(plan, s_out, p_out, first, a), fetch(plan, s_x, p_x, first, b)
        for j in range(block_size(plan, first)): ...
        settle(plan, s_out, p_out, first, a)

Contiguous blocks are worked on in place; others are copied to the stack and back. `walk` is an array of five numbers
for the loops (the lengths of four dims, missing ones 1, and the number of rows in a block) and five for each array, in
the order of the arguments: its four steps in elements, and whether all of it is contiguous.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from castile.kernels.calls import Call, chain, nothing
from castile.kernels.numpy import blocks
from castile.kernels.numpy.jit import inlined
from castile.kernels.numpy.pointers import BLOCK, after
from castile.kernels.numpy.views import Shape, flat, has_forward_strides, merge_dims, outer_offsets

# Where a walk has the steps of its arrays.
FIRST, SECOND, THIRD = 5, 10, 15

_NUM_DIMS = 4
# Shorter rows are gathered into blocks: a loop over so few elements costs more to enter than to run.
_LONG = 64


def elementwise(
    kernel: Any, arrays: list[np.ndarray], *constants: Any, bind: Callable[..., Call] = partial
) -> Call | None:
    """The call of `kernel(walk, *flats, *constants)` over arrays of one shape; None if a step is negative or not whole.

    Each array becomes the 1-D array from its first to its last element. Elements of a result must not coincide.
    bind  makes a call from the kernel and its arguments
    """
    for x in arrays:
        blocks.known(x.dtype)
    shape, strides = merge_dims(arrays[0].shape, [x.strides for x in arrays])
    if not shape or shape[-1] <= BLOCK or all(one[-1] == x.itemsize for x, one in zip(arrays, strides, strict=True)):
        return over_dims(kernel, arrays, shape, strides, *constants, bind=bind)
    # Rows that have to pass through the stack are cut to what it holds.
    views = [as_strided(x, shape, one) for x, one in zip(arrays, strides, strict=True)]
    num = shape[-1] // BLOCK
    heads = [x[..., : num * BLOCK].reshape(*shape[:-1], num, BLOCK, copy=False) for x in views]
    tails = [x[..., num * BLOCK :] for x in views]
    works = [
        over_dims(kernel, part, part[0].shape, [x.strides for x in part], *constants, bind=bind)
        for part in (heads, tails)
    ]
    return None if any(work is None for work in works) else chain([work for work in works if work])


def over_dims(
    kernel: Any,
    arrays: list[np.ndarray],
    shape: Shape,
    strides: list[Shape],
    *constants: Any,
    bind: Callable[..., Call] = partial,
) -> Call | None:
    """As `elementwise`, over given dims, with their strides in bytes, which are not merged."""
    if prod(shape) == 0:
        return nothing
    if not has_forward_strides(arrays, strides):
        return None
    steps = [tuple(step // x.itemsize for step in one) for x, one in zip(arrays, strides, strict=True)]
    num_outer = max(0, len(shape) - _NUM_DIMS)
    walk = _walk(shape[num_outer:], [one[num_outer:] for one in steps])
    lengths = [_span(shape[num_outer:], one[num_outer:]) for one in steps]
    calls: list[Call] = []
    for offsets in outer_offsets(shape[:num_outer], [one[:num_outer] for one in steps]):
        flats = [flat(x, offset, length) for x, offset, length in zip(arrays, offsets, lengths, strict=True)]
        calls.append(bind(kernel, walk, *flats, *constants))
    return chain(calls)


def _span(shape: Shape, steps: Shape) -> int:
    """Elements from the first to the last."""
    return sum((size - 1) * step for size, step in zip(shape, steps, strict=True)) + 1


def _walk(shape: Shape, steps: list[Shape]) -> np.ndarray:
    shape = (*[1] * (_NUM_DIMS - len(shape)), *shape)
    packed = tuple(accumulate((1, *shape[:0:-1]), mul))[::-1]
    table = []
    for one in steps:
        one = (*[0] * (_NUM_DIMS - len(one)), *one)
        # A dim of length 1 is never stepped along.
        one = tuple(dense if size == 1 else step for size, step, dense in zip(shape, one, packed, strict=True))
        table.append((*one, one == packed))
    rows = 1 if shape[-1] >= _LONG and all(one[-2] == 1 for one in table) else max(1, BLOCK // shape[-1])
    return np.array([(*shape, rows), *table], np.int64).reshape(-1)


@inlined
def num_rows(plan):  # type: ignore[no-untyped-def]
    """The number of rows of a walk."""
    return plan[0] * plan[1] * plan[2]


@inlined
def block_size(plan, first):  # type: ignore[no-untyped-def]
    """Elements of the block that starts with row `first`."""
    return _rows(plan, first) * plan[3]


@inlined
def room(plan, steps, x, first, held):  # type: ignore[no-untyped-def]
    """Where to write the block that starts with row `first`: in place if it is contiguous, else `held`."""
    return after(x, offset(plan, steps, first)) if _dense(steps, _rows(plan, first)) else held


@inlined
def fetch(plan, steps, x, first, held):  # type: ignore[no-untyped-def]
    """As `room`, with the block's elements in it."""
    rows = _rows(plan, first)
    if _dense(steps, rows):
        return after(x, offset(plan, steps, first))
    blocks.gather(held, x, plan, steps, first, rows)
    return held


@inlined
def settle(plan, steps, x, first, held):  # type: ignore[no-untyped-def]
    """Copy a block from `held` to its place, unless it was written there."""
    rows = _rows(plan, first)
    if not _dense(steps, rows):
        blocks.scatter(x, held, plan, steps, first, rows)


@inlined
def _rows(plan, first):  # type: ignore[no-untyped-def]
    return min(plan[4], num_rows(plan) - first)


@inlined
def _dense(steps, rows):  # type: ignore[no-untyped-def]
    return steps[4] == 1 or (rows == 1 and steps[3] == 1)


@inlined
def offset(plan, steps, row):  # type: ignore[no-untyped-def]
    """Elements from the start of an array to the start of a row."""
    if row < plan[2]:
        return row * steps[2]
    middle = row // plan[2]
    place = (row - middle * plan[2]) * steps[2]
    return place + middle // plan[1] * steps[0] + middle % plan[1] * steps[1]

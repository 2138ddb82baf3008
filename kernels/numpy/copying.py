"""Copies, fills, additions and sums of arrays.

It knows no activation.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from castile.kernels.calls import chain, chain_all, nothing
from castile.kernels.form import prepares
from castile.kernels.numpy.jit import compiled, inlined
from castile.kernels.numpy.pointers import BLOCK, add_rows, after, copy_rows, fill, pointer, spare
from castile.kernels.numpy.strided import (
    FIRST,
    SECOND,
    THIRD,
    block_size,
    elementwise,
    fetch,
    num_rows,
    over_dims,
    room,
    settle,
)
from castile.kernels.numpy.views import Shape, is_contiguous, merge_dims

# NumPy moves longer rows as fast; so many bytes cost it as much as the step from row to row.
_SHORT_BYTES = 256


@prepares
def add(out: np.ndarray, x: np.ndarray, y: np.ndarray) -> Callable[[], Any] | None:
    """See the definition."""
    own = (0 if size == 1 else step for size, step in zip(y.shape, y.strides, strict=True))
    steps = (*[0] * (x.ndim - y.ndim), *own)
    return elementwise(_add, [out, x, as_strided(y, x.shape, steps)])


@prepares
def add_bias(out: np.ndarray, x: np.ndarray, b: np.ndarray, *, dim: int) -> Callable[[], Any] | None:
    """See the definition."""
    return add(out, x, b.reshape(b.size, *[1] * (x.ndim - 1 - dim % x.ndim)))


@prepares
def sum_over(out: np.ndarray, x: np.ndarray, *, dims: Shape, accumulate: bool) -> Callable[[], Any] | None:
    """See the definition."""
    gone = {dim % x.ndim for dim in dims}
    kept = iter(out.strides)
    # Along a summed dim the result stands still: step 0.
    steps = tuple(0 if dim in gone else next(kept) for dim in range(x.ndim))
    shape, strides = merge_dims(x.shape, [x.strides, steps])
    return onto_zeros(over_dims(_add_sums, [x, out], shape, strides), accumulate, out)


@prepares
def reshape(out: np.ndarray, x: np.ndarray, *, shape: Shape) -> Callable[[], Any] | None:
    """See the definition."""
    if x.size == 0:
        return nothing
    if is_contiguous(out):
        return copy_call(out.reshape(x.shape), x)
    if is_contiguous(x):
        return copy_call(out, x.reshape(out.shape))
    # Dividing a dim is a view on any strides, so neither side is copied.
    common = _common_shape(x.shape, out.shape)
    if common is None:
        return None
    return copy_call(out.reshape(common, copy=False), x.reshape(common, copy=False))


def _common_shape(a: Shape, b: Shape) -> Shape | None:
    """The coarsest shape that divides dims of both a and b; None if cuts of one lie inside dims of the other."""
    cuts = sorted({prod(shape[i:]) for shape in (a, b) for i in range(len(shape) + 1)})
    if any(outer % inner for inner, outer in pairwise(cuts)):
        return None
    return tuple(outer // inner for inner, outer in reversed(list(pairwise(cuts))))


@prepares
def expand(out: np.ndarray, x: np.ndarray, *, shape: Shape, dims: Shape | None = None) -> Callable[[], Any]:
    """See the definition."""
    gone = {dim % out.ndim for dim in (range(out.ndim) if dims is None else dims)}
    own = iter(x.strides)
    steps = tuple(0 if dim in gone else next(own) for dim in range(out.ndim))
    return copy_call(out, as_strided(x, shape, steps))


@prepares
def copy(
    out: np.ndarray | tuple[np.ndarray, ...], x: np.ndarray, *more: np.ndarray, accumulate: bool
) -> Callable[[], Any] | None:
    """See the definition."""
    rows = zip(out if isinstance(out, tuple) else (out,), (x, *more), strict=True)
    return chain_all(elementwise(_add_into, [to, one]) if accumulate else copy_call(to, one) for to, one in rows)


def copy_call(out: np.ndarray, x: np.ndarray) -> Callable[[], Any]:
    """The work of copying x to out, of one shape."""
    shape, strides = merge_dims(out.shape, [out.strides, x.strides])
    if _in_short_rows(shape, [out, x], strides):
        return over_dims(_copy, [out, x], shape, strides) or partial(np.copyto, out, x)
    return partial(np.copyto, out, x)


def _in_short_rows(shape: Shape, arrays: list[np.ndarray], strides: list[Shape]) -> bool:
    """Whether compiled loops over these arrays' rows of neighbours beat NumPy's."""
    neighbours = len(shape) > 1 and all(one[-1] == x.itemsize for x, one in zip(arrays, strides, strict=True))
    real = all(x.dtype == arrays[0].dtype and x.dtype.kind == "f" for x in arrays)
    return neighbours and real and shape[-1] * arrays[0].itemsize < _SHORT_BYTES


@prepares
def zero(out: np.ndarray, *, shape: Shape, dtype: str, accumulate: bool) -> Callable[[], Any]:
    """See the definition."""
    return nothing if accumulate else clear_call(out)


def clear_call(out: np.ndarray) -> Callable[[], Any]:
    """The work of filling out with zeros."""
    shape, strides = merge_dims(out.shape, [out.strides])
    if _in_short_rows(shape, [out], strides):
        return over_dims(_clear, [out], shape, strides) or partial(out.fill, 0)
    return partial(out.fill, 0)


def onto_zeros(work: Callable[[], Any] | None, accumulate: bool, *outs: np.ndarray) -> Callable[[], Any] | None:
    """Work that adds to `outs`, which are cleared before it unless it is to add to what is there; None for none."""
    return work if work is None or accumulate else chain([*map(clear_call, outs), work])


@compiled
def _copy(walk, out, x):  # type: ignore[no-untyped-def]
    plan, p_out, p_x = pointer(walk), pointer(out), pointer(x)
    so, sx = after(plan, FIRST), after(plan, SECOND)
    for i, j in np.ndindex(plan[0], plan[1]):
        to, start = after(p_out, i * so[0] + j * so[1]), after(p_x, i * sx[0] + j * sx[1])
        copy_rows(to, so[2], start, sx[2], plan[2], plan[3])


@compiled
def _clear(walk, out):  # type: ignore[no-untyped-def]
    plan, p_out = pointer(walk), pointer(out)
    so = after(plan, FIRST)
    for i, j, k in np.ndindex(plan[0], plan[1], plan[2]):
        fill(after(p_out, i * so[0] + j * so[1] + k * so[2]), 0, plan[3])


@compiled
def _add(walk, out, x, y):  # type: ignore[no-untyped-def]
    plan, p_out, p_x, p_y = pointer(walk), pointer(out), pointer(x), pointer(y)
    s_out, s_x, s_y = after(plan, FIRST), after(plan, SECOND), after(plan, THIRD)
    a, b, c = spare(out), spare(x), spare(y)
    for first in range(0, num_rows(plan), plan[4]):
        o, u, v = room(plan, s_out, p_out, first, a), fetch(plan, s_x, p_x, first, b), fetch(plan, s_y, p_y, first, c)
        for j in range(block_size(plan, first)):
            o[j] = u[j] + v[j]
        settle(plan, s_out, p_out, first, a)


@compiled
def _add_into(walk, out, x):  # type: ignore[no-untyped-def]
    plan, p_out, p_x = pointer(walk), pointer(out), pointer(x)
    s_out, s_x = after(plan, FIRST), after(plan, SECOND)
    a, b = spare(out), spare(x)
    for first in range(0, num_rows(plan), plan[4]):
        o, v = fetch(plan, s_out, p_out, first, a), fetch(plan, s_x, p_x, first, b)
        for j in range(block_size(plan, first)):
            o[j] += v[j]
        settle(plan, s_out, p_out, first, a)


@compiled
def _add_sums(walk, x, out):  # type: ignore[no-untyped-def]
    """Adds x row by row to where the result stands; a row falls on one element of it or on as many as it has."""
    plan, p_x, p_out, held = pointer(walk), pointer(x), pointer(out), spare(x)
    sx, so, rows, cols = after(plan, FIRST), after(plan, SECOND), plan[2], plan[3]
    together = so[2] == 0 and so[3] == 0 and sx[3] == 1 and rows * cols <= BLOCK
    for i, j in np.ndindex(plan[0], plan[1]):
        start, to = after(p_x, i * sx[0] + j * sx[1]), after(p_out, i * so[0] + j * so[1])
        if together:
            # Some sums' elements are gathered before the first is summed: reading what was just written stalls.
            batch = BLOCK // (rows * cols)
            if j % batch == 0:
                for n in range(min(batch, plan[1] - j)):
                    copy_rows(after(held, n * rows * cols), cols, after(start, n * sx[1]), sx[2], rows, cols)
            to[0] += _sum(after(held, j % batch * rows * cols), 1, rows * cols)
        elif so[3] == 0:
            for r in range(rows):
                to[r * so[2]] += _sum(after(start, r * sx[2]), sx[3], cols)
        else:
            _add_rows(to, so, start, sx, rows, cols)


@inlined
def _add_rows(out, so, x, sx, rows, cols):  # type: ignore[no-untyped-def]
    if so[3] == 1 and sx[3] == 1:
        add_rows(out, so[2], x, sx[2], rows, cols)
        return
    for r in range(rows):
        for c in range(cols):
            out[r * so[2] + c * so[3]] += x[r * sx[2] + c * sx[3]]


@inlined
def _sum(x, step, num):  # type: ignore[no-untyped-def]
    total = x[0]
    if step == 1:
        for j in range(1, num):
            total += x[j]
    else:
        for j in range(1, num):
            total += x[j * step]
    return total

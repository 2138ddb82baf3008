"""Kernels that move, fill, add or sum numbers.

It knows no activation.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from castile.kernels.form import prepares
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.views import Shape, by_rows, chain, dense, elementwise, nothing


@prepares
def add(out: np.ndarray, x: np.ndarray, y: np.ndarray) -> Callable[[], Any] | None:
    """See the definition."""
    own = (0 if size == 1 else step for size, step in zip(y.shape, y.strides, strict=True))
    steps = (*[0] * (x.ndim - y.ndim), *own)
    if steps and steps[-1] == 0 and x.shape[-1] > 1:
        return by_rows(_add_one, [out, x], bare=[as_strided(y, x.shape[:-1], steps[:-1])])
    return elementwise(_add, [out, x, as_strided(y, x.shape, steps)])


@prepares
def add_bias(out: np.ndarray, x: np.ndarray, b: np.ndarray, *, dim: int) -> Callable[[], Any] | None:
    """See the definition."""
    dim %= x.ndim
    if dim < x.ndim - 1 and dense(out[(0,) * (dim + 1)]) and dense(x[(0,) * (dim + 1)]):
        # What shares an element of b becomes one long row.
        shape = (*x.shape[: dim + 1], prod(x.shape[dim + 1 :]))
        out, x = out.reshape(shape, copy=False), x.reshape(shape, copy=False)
    along = b.reshape(b.size, *[1] * (x.ndim - 1 - dim))
    return add(out, x, along)


@prepares
def sum_over(out: np.ndarray, x: np.ndarray, *, dims: Shape, accumulate: bool) -> Callable[[], Any] | None:
    """See the definition."""
    gone = {dim % x.ndim for dim in dims}
    kept = iter(out.strides)
    # Along a summed dim the result stands still: step 0.
    steps = tuple(0 if dim in gone else next(kept) for dim in range(x.ndim))
    tail = next((n for n in range(x.ndim) if x.ndim - 1 - n not in gone), x.ndim)
    if tail == 0:
        work = elementwise(_add_into, [as_strided(out, x.shape, steps), x])
    else:
        if dense(x[(0,) * (x.ndim - tail)]):
            x = x.reshape(*x.shape[: x.ndim - tail], -1, copy=False)
        lead = x.shape[:-1]
        work = by_rows(_add_sums, [x], bare=[as_strided(out, lead, steps[: len(lead)])])
    return work if work is None or accumulate else chain([partial(out.fill, 0), work])


@prepares
def reshape(out: np.ndarray, x: np.ndarray, *, shape: Shape) -> Callable[[], Any] | None:
    """See the definition."""
    if x.size == 0:
        return nothing
    if dense(out):
        return partial(np.copyto, out.reshape(x.shape), x)
    if dense(x):
        return partial(np.copyto, out, x.reshape(out.shape))
    # Dividing a dim is a view on any strides, so neither side is copied.
    common = _common_shape(x.shape, out.shape)
    if common is None:
        return None
    return partial(np.copyto, out.reshape(common, copy=False), x.reshape(common, copy=False))


def _common_shape(a: Shape, b: Shape) -> Shape | None:
    """The coarsest shape that divides dims of both a and b; None if cuts of one lie inside dims of the other."""
    cuts = sorted({prod(shape[i:]) for shape in (a, b) for i in range(len(shape) + 1)})
    if any(outer % inner for inner, outer in pairwise(cuts)):
        return None
    return tuple(outer // inner for inner, outer in reversed(list(pairwise(cuts))))


def expand(out: np.ndarray, x: np.ndarray, *, shape: Shape) -> None:
    """See the definition."""
    np.copyto(out, x)


@prepares
def copy(out: np.ndarray, x: np.ndarray, *, accumulate: bool) -> Callable[[], Any] | None:
    """See the definition."""
    return elementwise(_add_into, [out, x]) if accumulate else partial(np.copyto, out, x)


def zero(out: np.ndarray, *, shape: Shape, dtype: str, accumulate: bool) -> None:
    """See the definition."""
    if not accumulate:
        out.fill(0)


@compiled
def _add(rows, cols, out, so, x, sx, y, sy):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, u, v = out[r * so : r * so + cols], x[r * sx : r * sx + cols], y[r * sy : r * sy + cols]
        for j in range(cols):
            o[j] = u[j] + v[j]


@compiled
def _add_one(rows, cols, out, so, x, sx, y, sy):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, u, v = out[r * so : r * so + cols], x[r * sx : r * sx + cols], y[r * sy]
        for j in range(cols):
            o[j] = u[j] + v


@compiled
def _add_into(rows, cols, out, so, x, sx):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, v = out[r * so : r * so + cols], x[r * sx : r * sx + cols]
        for j in range(cols):
            o[j] += v[j]


@compiled
def _add_sums(rows, cols, x, sx, out, so):  # type: ignore[no-untyped-def]
    for r in range(rows):
        v = x[r * sx : r * sx + cols]
        total = v[0]
        for j in range(1, cols):
            total += v[j]
        out[r * so] += total

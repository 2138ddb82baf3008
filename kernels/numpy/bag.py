"""Embedding bags: sums of the table's rows that each bag of ids names, and the gradients of table and weights.

It knows no meaning of the ids. A bag is given by its first id and a step; missing weights are one 1 with step 0.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from castile.kernels.calls import Call
from castile.kernels.form import prepares
from castile.kernels.ids import OutOfRange
from castile.kernels.numpy.copying import onto_zeros
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.pointers import after, pointer
from castile.kernels.numpy.views import by_rows, row_span


@prepares
def embedding_bag(
    out: np.ndarray, ids: np.ndarray, table: np.ndarray, *weights: np.ndarray, scale: float, first: int, known: int
) -> Call | None:
    """See the definition."""
    return _bags(_look_up, out, ids, table, weights, scale, first, known)


@prepares
def embedding_bag_grad(
    out: np.ndarray,
    dy: np.ndarray,
    ids: np.ndarray,
    *weights: np.ndarray,
    rows: int,
    scale: float,
    first: int,
    known: int,
    accumulate: bool,
) -> Call | None:
    """See the definition."""
    return onto_zeros(_bags(_add_rows, dy, ids, out, weights, scale, first, known), accumulate, out)


@prepares
def embedding_bag_weights_grad(
    out: np.ndarray, dy: np.ndarray, ids: np.ndarray, table: np.ndarray, *, scale: float, first: int, known: int
) -> Call | None:
    """See the definition."""
    return _bags(_dots, dy, ids, table, (out,), scale, first, known)


def _bags(
    kernel: Callable[..., Any],
    rows: np.ndarray,
    ids: np.ndarray,
    table: np.ndarray,
    weights: tuple[np.ndarray, ...],
    scale: float,
    first: int,
    known: int,
) -> Call | None:
    span = row_span(table)
    # Writable, as weights are, or loops would be compiled anew for it.
    weight = weights[0] if weights else as_strided(np.ones(1, table.dtype), ids.shape, (0,) * ids.ndim)
    bags = ids.shape[-1], ids.strides[-1] // ids.itemsize, weight.strides[-1] // weight.itemsize
    ends = *bags, table.dtype.type(scale)
    return span and by_rows(kernel, [rows], *span, len(table), first, known, *ends, bare=[ids[..., 0], weight[..., 0]])


@compiled
def _row(ids, n, step, first, known):  # type: ignore[no-untyped-def]
    i = ids[n * step]
    if i < 0 or i >= known:
        raise OutOfRange("embedding_bag: an id lies outside the table's rows")
    return np.int64(i) - first


@compiled
def _look_up(  # type: ignore[no-untyped-def]
    rows, cols, out, so, ids, si, weights, sw, table, st, length, first, known, size, i_step, w_step, scale
):
    for r in range(rows):
        o, bag, weight = after(pointer(out), r * so), after(pointer(ids), r * si), after(pointer(weights), r * sw)
        for n in range(size):
            i, by = _row(bag, n, i_step, first, known), weight[n * w_step] * scale
            v = after(pointer(table), i * st)
            if i < 0 or i >= length:
                for j in range(cols if n == 0 else 0):
                    o[j] = 0
            elif n == 0:
                for j in range(cols):
                    o[j] = v[j] * by
            else:
                for j in range(cols):
                    o[j] += v[j] * by


@compiled
def _add_rows(  # type: ignore[no-untyped-def]
    rows, cols, dy, sd, ids, si, weights, sw, table, st, length, first, known, size, i_step, w_step, scale
):
    for r in range(rows):
        d, bag, weight = after(pointer(dy), r * sd), after(pointer(ids), r * si), after(pointer(weights), r * sw)
        for n in range(size):
            i, by = _row(bag, n, i_step, first, known), weight[n * w_step] * scale
            target = after(pointer(table), i * st)
            for j in range(cols if 0 <= i < length else 0):
                target[j] += d[j] * by


@compiled
def _dots(  # type: ignore[no-untyped-def]
    rows, cols, dy, sd, ids, si, weights, sw, table, st, length, first, known, size, i_step, w_step, scale
):
    for r in range(rows):
        d, bag, grad = after(pointer(dy), r * sd), after(pointer(ids), r * si), after(pointer(weights), r * sw)
        for n in range(size):
            i = _row(bag, n, i_step, first, known)
            v = after(pointer(table), i * st)
            total = scale - scale
            for j in range(cols if 0 <= i < length else 0):
                total += d[j] * v[j]
            grad[n * w_step] = total * scale

"""Embedding lookup, and the gradient of the table.

It knows no meaning of the ids.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from castile.kernels.form import prepares
from castile.kernels.ids import OutOfRange
from castile.kernels.numpy.copying import onto_zeros
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.views import by_rows, row_span


@prepares
def embedding(
    out: np.ndarray, ids: np.ndarray, table: np.ndarray, *, first: int, known: int
) -> Callable[[], Any] | None:
    """See the definition."""
    span = row_span(table)
    return span and by_rows(_look_up, [out], *span, len(table), first, known, bare=[ids])


@prepares
def embedding_grad(
    out: np.ndarray, dy: np.ndarray, ids: np.ndarray, *, rows: int, first: int, known: int, accumulate: bool
) -> Callable[[], Any] | None:
    """See the definition."""
    span = row_span(out)
    return onto_zeros(span and by_rows(_add_rows, [dy], *span, rows, first, known, bare=[ids]), accumulate, out)


@compiled
def _look_up(rows, cols, out, so, ids, si, table, st, length, first, known):  # type: ignore[no-untyped-def]
    for r in range(rows):
        i = ids[r * si]
        if i < 0 or i >= known:
            raise OutOfRange("embedding: an id lies outside the table's rows")
        o, at = out[r * so : r * so + cols], np.int64(i) - first
        if 0 <= at < length:
            source = table[at * st : at * st + cols]
            for j in range(cols):
                o[j] = source[j]
        else:
            for j in range(cols):
                o[j] = 0


@compiled
def _add_rows(rows, cols, dy, sd, ids, si, table, st, length, first, known):  # type: ignore[no-untyped-def]
    for r in range(rows):
        i = ids[r * si]
        if i < 0 or i >= known:
            raise OutOfRange("embedding: an id lies outside the table's rows")
        at = np.int64(i) - first
        if 0 <= at < length:
            d, target = dy[r * sd : r * sd + cols], table[at * st : at * st + cols]
            for j in range(cols):
                target[j] += d[j]

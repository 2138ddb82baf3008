"""Softmax cross-entropy and its gradient, row by row.

It knows no model.
"""

from collections.abc import Callable
from math import log
from typing import Any

import numpy as np

from castile.kernels.form import prepares
from castile.kernels.ids import OutOfRange
from castile.kernels.numpy.columns import by_columns, log_sums
from castile.kernels.numpy.copying import onto_zeros
from castile.kernels.numpy.jit import compiled, exp, f32, row_max
from castile.kernels.numpy.pointers import BLOCK, after, pointer, spare
from castile.kernels.numpy.views import by_rows


@prepares
def cross_entropy(
    out: tuple[np.ndarray, np.ndarray], logits: np.ndarray, labels: np.ndarray, *, scale: float
) -> Callable[[], Any] | None:
    """See the definition."""
    loss, lse = out
    constants, bare = (loss.reshape(1), logits.dtype.type(scale)), [lse, labels]
    work = by_rows(_entropy, [logits], *constants, bare=bare) or by_columns(_beside, [logits], *constants, bare=bare)
    return onto_zeros(work, False, loss)


@prepares
def cross_entropy_grad(
    out: np.ndarray, dy: np.ndarray, logits: np.ndarray, labels: np.ndarray, lse: np.ndarray, *, scale: float
) -> Callable[[], Any] | None:
    """See the definition."""
    arrays, constants, bare = [out, logits], (dy.reshape(1), logits.dtype.type(scale)), [lse, labels]
    rows = by_rows(_entropy_grad, arrays, *constants, bare=bare)
    return rows or by_columns(_beside_grad, arrays, *constants, bare=bare)


@compiled
def _entropy(rows, cols, logits, sx, lse, sl, labels, st, loss, scale):  # type: ignore[no-untyped-def]
    total = scale - scale
    for r in range(rows):
        v = logits[r * sx : r * sx + cols]
        top = row_max(v)
        part = scale - scale
        for j in range(cols):
            part += exp(v[j] - top)
        label = labels[r * st]
        if label < 0 or label >= cols:
            raise OutOfRange("cross_entropy: a label lies outside the logits' last dim")
        lse[r * sl] = top + log(part)
        total += lse[r * sl] - v[label]
    loss[0] += total * scale


@compiled
def _entropy_grad(rows, cols, out, so, logits, sx, lse, sl, labels, st, dy, scale):  # type: ignore[no-untyped-def]
    factor = dy[0] * scale
    for r in range(rows):
        o, v = out[r * so : r * so + cols], logits[r * sx : r * sx + cols]
        base, label = lse[r * sl], labels[r * st]
        if label < 0 or label >= cols:
            raise OutOfRange("cross_entropy: a label lies outside the logits' last dim")
        for j in range(cols):
            o[j] = exp(v[j] - base) * factor
        # Apart, so that the loop over all columns compares nothing.
        o[label] = (exp(v[label] - base) - f32(1)) * factor


@compiled
def _beside(rows, cols, logits, sx, lse, sl, labels, st, loss, scale):  # type: ignore[no-untyped-def]
    total = scale - scale
    tops, totals = spare(logits), spare(logits)
    for r in range(0, rows, BLOCK):
        some, v = min(BLOCK, rows - r), after(pointer(logits), r)
        log_sums(tops, totals, v, sx, cols, some)
        for k in range(some):
            label = labels[(r + k) * st]
            if label < 0 or label >= cols:
                raise OutOfRange("cross_entropy: a label lies outside the logits' last dim")
            lse[(r + k) * sl] = tops[k]
            total += tops[k] - v[label * sx + k]
    loss[0] += total * scale


@compiled
def _beside_grad(rows, cols, out, so, logits, sx, lse, sl, labels, st, dy, scale):  # type: ignore[no-untyped-def]
    factor = dy[0] * scale
    base = spare(logits)
    for r in range(0, rows, BLOCK):
        some, o, v = min(BLOCK, rows - r), after(pointer(out), r), after(pointer(logits), r)
        for k in range(some):
            base[k] = lse[(r + k) * sl]
        for j in range(cols):
            for k in range(some):
                o[j * so + k] = exp(v[j * sx + k] - base[k]) * factor
        for k in range(some):
            label = labels[(r + k) * st]
            if label < 0 or label >= cols:
                raise OutOfRange("cross_entropy: a label lies outside the logits' last dim")
            o[label * so + k] = (exp(v[label * sx + k] - base[k]) - f32(1)) * factor

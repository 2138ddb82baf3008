"""The softmax over the last dim, its logarithm and their gradients, row by row.

It knows no loss.
"""

from math import log

import numpy as np

from castile.kernels.calls import Call
from castile.kernels.form import prepares
from castile.kernels.numpy.jit import compiled, exp, f32, row_max
from castile.kernels.numpy.views import by_rows


@prepares
def softmax(out: np.ndarray, x: np.ndarray) -> Call | None:
    """See the definition."""
    return by_rows(_softmax, [out, x])


@prepares
def softmax_grad(out: np.ndarray, dy: np.ndarray, y: np.ndarray) -> Call | None:
    """See the definition."""
    return by_rows(_softmax_grad, [out, dy, y])


@prepares
def log_softmax(out: np.ndarray, x: np.ndarray) -> Call | None:
    """See the definition."""
    return by_rows(_log_softmax, [out, x])


@prepares
def log_softmax_grad(out: np.ndarray, dy: np.ndarray, y: np.ndarray) -> Call | None:
    """See the definition."""
    return by_rows(_log_softmax_grad, [out, dy, y])


@compiled
def _softmax(rows, cols, out, so, x, sx):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, v = out[r * so : r * so + cols], x[r * sx : r * sx + cols]
        top = row_max(v)
        for j in range(cols):
            o[j] = exp(v[j] - top)
        total = o[0] - o[0]
        for j in range(cols):
            total += o[j]
        share = f32(1) / total
        for j in range(cols):
            o[j] *= share


@compiled
def _softmax_grad(rows, cols, out, so, dy, sd, y, sy):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, d, v = out[r * so : r * so + cols], dy[r * sd : r * sd + cols], y[r * sy : r * sy + cols]
        inner = d.dtype.type(0)
        for j in range(cols):
            inner += d[j] * v[j]
        for j in range(cols):
            o[j] = v[j] * (d[j] - inner)


@compiled
def _log_softmax(rows, cols, out, so, x, sx):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, v = out[r * so : r * so + cols], x[r * sx : r * sx + cols]
        top = row_max(v)
        total = top - top
        for j in range(cols):
            total += exp(v[j] - top)
        lse = top + log(total)
        for j in range(cols):
            o[j] = v[j] - lse


@compiled
def _log_softmax_grad(rows, cols, out, so, dy, sd, y, sy):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, d, v = out[r * so : r * so + cols], dy[r * sd : r * sd + cols], y[r * sy : r * sy + cols]
        total = d.dtype.type(0)
        for j in range(cols):
            total += d[j]
        for j in range(cols):
            o[j] = d[j] - exp(v[j]) * total

"""Products of all pairs of each sample's vectors, sample by sample in the cache.

It knows no tables or networks that make the vectors.
"""

from functools import partial
from typing import Any

import numpy as np

from castile.kernels.calls import Call
from castile.kernels.form import prepares
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.pointers import after, fill, pointer
from castile.kernels.numpy.views import element_strides, has_contiguous_rows, is_forward, span


@prepares
def pair_dots(out: np.ndarray, x: np.ndarray) -> Call | None:
    """See the definition."""
    lain = _lain(x, out)
    return partial(_dots, *x.shape, *lain) if lain else None


@prepares
def pair_dots_grad(out: np.ndarray, dy: np.ndarray, x: np.ndarray) -> Call | None:
    """See the definition."""
    lain = _lain(x, dy, out)
    return partial(_dots_grad, *x.shape, *lain) if lain else None


def _lain(*arrays: np.ndarray) -> list[Any] | None:
    """Each array as its elements in memory, and a step for each dim but the last; None where that is not dense."""
    if not (is_forward(*arrays) and has_contiguous_rows(*arrays)):
        return None
    return [part for x in arrays for part in (span(x), *element_strides(x)[:-1])]


@compiled
def _dots(b, f, d, x, xb, xf, y, yb):  # type: ignore[no-untyped-def]
    for sample in range(b):
        o = after(pointer(y), sample * yb)
        pair = 0
        for first in range(f):
            u = after(pointer(x), sample * xb + first * xf)
            for second in range(first):
                v = after(pointer(x), sample * xb + second * xf)
                total = x.dtype.type(0)
                for j in range(d):
                    total += u[j] * v[j]
                o[pair] = total
                pair += 1


@compiled
def _dots_grad(b, f, d, x, xb, xf, dy, db, dx, ob, of):  # type: ignore[no-untyped-def]
    zero = x.dtype.type(0)
    for sample in range(b):
        grads = after(pointer(dy), sample * db)
        for first in range(f):
            o = after(pointer(dx), sample * ob + first * of)
            fill(o, zero, d)
            for second in range(f):
                if second == first:
                    continue
                high, low = max(first, second), min(first, second)
                grad = grads[high * (high - 1) // 2 + low]
                v = after(pointer(x), sample * xb + second * xf)
                for j in range(d):
                    o[j] += grad * v[j]

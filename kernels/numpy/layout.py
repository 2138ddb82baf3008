"""Rearranged copies in one pass over memory: permuted dims, concatenation, slices.

It knows no meaning of dims. Dims that are only split are views, so every element moves once.
"""

from functools import partial

import numpy as np

from castile.kernels.calls import Call, chain, nothing
from castile.kernels.form import prepares
from castile.kernels.numpy.copying import copy, copy_call
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.pointers import after, pointer
from castile.kernels.numpy.views import Shape, flat, merge_dims, outer_offsets

# A tile of each array fits into the first-level cache, and a row of it is some cache lines.
_TILE = 8


@prepares
def rearrange(
    out: np.ndarray, x: np.ndarray, *, apart: Shape, dims: Shape, shape: Shape, accumulate: bool
) -> Call | None:
    """See the definition."""
    if x.size == 0:
        return nothing
    source = x.reshape(apart, copy=False).transpose(dims)
    target = out.reshape(source.shape, copy=False)
    return _into(target, source, accumulate)


@prepares
def concat(out: np.ndarray, *xs: np.ndarray, dim: int, accumulate: bool) -> Call | None:
    """See the definition."""
    calls: list[Call] = []
    start = 0
    for x in xs:
        call = _into(_range(out, dim, start, start + x.shape[dim]), x, accumulate)
        if call is None:
            return None
        calls.append(call)
        start += x.shape[dim]
    return chain(calls)


@prepares
def cut(out: np.ndarray, x: np.ndarray, *, dim: int, start: int, stop: int, accumulate: bool) -> Call | None:
    """See the definition."""
    return _into(out, _range(x, dim, start, stop), accumulate)


def _range(x: np.ndarray, dim: int, start: int, stop: int) -> np.ndarray:
    return x[(slice(None),) * dim + (slice(start, stop),)]


def _into(out: np.ndarray, x: np.ndarray, accumulate: bool) -> Call | None:
    """The work of copying or adding x to out, of one shape."""
    if accumulate:
        return copy(out, x, accumulate=True)
    return _transposed(out, x) or copy_call(out, x)


def _transposed(out: np.ndarray, x: np.ndarray) -> Call | None:
    """The work of copying x to out where neighbours in one are far apart in the other; None where they are not."""
    shape, strides = merge_dims(out.shape, [out.strides, x.strides])
    steps = [tuple(step // x.itemsize for step in one) for one in strides]
    if x.dtype.kind != "f" or out.dtype != x.dtype or any(step < 0 for one in strides for step in one):
        return None
    fast = [one.index(1) if 1 in one else -1 for one in steps]
    if fast[0] == fast[1] or min(fast) < 0:
        return None
    cols, rows = fast
    others = [dim for dim in range(len(shape)) if dim not in fast]
    lengths, (so, sx) = (shape[rows], shape[cols]), (steps[0][rows], steps[1][cols])
    spans = [(shape[rows] - 1) * so + shape[cols], (shape[cols] - 1) * sx + shape[rows]]
    calls: list[Call] = []
    middle = others[-1:]
    num, step = (shape[middle[0]], [one[middle[0]] for one in steps]) if middle else (1, [0, 0])
    far = others[:-1]
    for offsets in outer_offsets(tuple(shape[dim] for dim in far), [tuple(one[dim] for dim in far) for one in steps]):
        flats = [
            flat(array, offset, span + (num - 1) * one)
            for array, offset, span, one in zip((out, x), offsets, spans, step, strict=True)
        ]
        calls.append(partial(_turn, *flats, num, *step, *lengths, so, sx))
    return chain(calls)


@compiled
def _turn(out, x, num, out_step, x_step, rows, cols, so, sx):  # type: ignore[no-untyped-def]
    """out[r * so + c] = x[c * sx + r] of num matrices, tile by tile."""
    for n in range(num):
        to, of = after(pointer(out), n * out_step), after(pointer(x), n * x_step)
        for r in range(0, rows, _TILE):
            for c in range(0, cols, _TILE):
                for i in range(r, min(r + _TILE, rows)):
                    o = after(to, i * so)
                    for j in range(c, min(c + _TILE, cols)):
                        o[j] = of[j * sx + i]

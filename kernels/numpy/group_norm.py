"""Group normalisation and its gradients: each group of channels of a sample is read again while it is in the cache.

It knows no other groups. Places of a channel lie in rows of neighbours, as they do in parts of images.
"""

from collections.abc import Callable
from functools import partial
from math import prod, sqrt
from typing import Any

import numpy as np

from castile.kernels.form import prepares
from castile.kernels.numpy.jit import compiled, f32
from castile.kernels.numpy.lanes import after, pointer
from castile.kernels.numpy.views import chain, dense, merge, nothing

Call = Callable[[], Any]


@prepares
def group_norm(
    out: tuple[np.ndarray, np.ndarray, np.ndarray],
    x: np.ndarray,
    g: np.ndarray,
    b: np.ndarray,
    *,
    groups: int,
    eps: float,
) -> Call | None:
    """See the definition."""
    y, mean, rstd = out
    plan = _plan([y, x], [mean, rstd], groups)
    if plan is None or not (dense(g) and dense(b)):
        return None
    real = x.dtype.type
    return partial(_normal, plan, y, x, mean, rstd, g, b, _per(x, groups), real(eps)) if x.size else nothing


@prepares
def group_norm_grad_input(
    out: np.ndarray, dy: np.ndarray, x: np.ndarray, g: np.ndarray, mean: np.ndarray, rstd: np.ndarray
) -> Call | None:
    """See the definition."""
    plan = _plan([out, dy, x], [mean, rstd], mean.shape[1])
    if plan is None or not dense(g):
        return None
    return partial(_normal_grad, plan, out, dy, x, mean, rstd, g, _per(x, mean.shape[1])) if x.size else nothing


@prepares
def group_norm_grad_params(
    out: tuple[np.ndarray, np.ndarray],
    dy: np.ndarray,
    x: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    *,
    accumulate: bool,
) -> Call | None:
    """See the definition."""
    plan = _plan([dy, x], [mean, rstd], mean.shape[1])
    if plan is None or not all(map(dense, out)):
        return None
    work = partial(_normal_sums, plan, dy, x, mean, rstd, *out, x.dtype.type(0)) if x.size else nothing
    return work if accumulate else chain([*(partial(one.fill, 0) for one in out), work])


def _per(x: np.ndarray, groups: int) -> Any:
    """One over the elements of a group."""
    return x.dtype.type(groups / max(1, prod(x.shape[1:])))


def _plan(arrays: list[np.ndarray], rows: list[np.ndarray], groups: int) -> np.ndarray | None:
    """Numbers of samples, groups, channels of a group, rows of a channel and neighbours in a row; then the steps of
    each array from sample to sample, from channel to channel and from row to row, and of each of `rows` both steps.

    None where a channel's places are no rows of neighbours.
    """
    shape, strides = merge(arrays[0].shape[2:], [x.strides[2:] for x in arrays])
    if any(step < 0 or step % x.itemsize for x in (*arrays, *rows) for step in x.strides) or len(shape) > 2:
        return None
    if shape and any(one[-1] != x.itemsize for x, one in zip(arrays, strides, strict=True)):
        return None
    num_rows, cols = (1, 1, *shape)[-2:]
    numbers = [arrays[0].shape[0], groups, arrays[0].shape[1] // groups, num_rows, cols]
    for x, one in zip(arrays, strides, strict=True):
        numbers += [step // x.itemsize for step in (*x.strides[:2], one[0] if len(shape) == 2 else 0)]
    for x in rows:
        numbers += [step // x.itemsize for step in x.strides]
    return np.array(numbers, np.int64)


@compiled
def _normal(plan, y, x, mean, rstd, g, b, per, eps):  # type: ignore[no-untyped-def]
    num, groups, channels, rows, cols, yb, yc, yr, xb, xc, xr, mb, mg, rb, rg = plan
    for i in range(num):
        for n in range(groups):
            c0 = n * channels
            total = per - per
            for c in range(c0, c0 + channels):
                for r in range(rows):
                    v = after(pointer(x), i * xb + c * xc + r * xr)
                    for j in range(cols):
                        total += v[j]
            middle = total * per
            total = per - per
            for c in range(c0, c0 + channels):
                for r in range(rows):
                    v = after(pointer(x), i * xb + c * xc + r * xr)
                    for j in range(cols):
                        total += (v[j] - middle) * (v[j] - middle)
            scale = f32(1) / sqrt(total * per + eps)
            for c in range(c0, c0 + channels):
                gain = scale * g[c]
                for r in range(rows):
                    v, o = after(pointer(x), i * xb + c * xc + r * xr), after(pointer(y), i * yb + c * yc + r * yr)
                    for j in range(cols):
                        o[j] = (v[j] - middle) * gain + b[c]
            after(pointer(mean), i * mb + n * mg)[0] = middle
            after(pointer(rstd), i * rb + n * rg)[0] = scale


@compiled
def _normal_grad(plan, out, dy, x, mean, rstd, g, per):  # type: ignore[no-untyped-def]
    num, groups, channels, rows, cols, ob, oc, orow, db, dc, dr, xb, xc, xr, mb, mg, rb, rg = plan
    for i in range(num):
        for n in range(groups):
            c0 = n * channels
            middle, scale = after(pointer(mean), i * mb + n * mg)[0], after(pointer(rstd), i * rb + n * rg)[0]
            first = second = per - per
            for c in range(c0, c0 + channels):
                total = along = per - per
                for r in range(rows):
                    d, v = after(pointer(dy), i * db + c * dc + r * dr), after(pointer(x), i * xb + c * xc + r * xr)
                    for j in range(cols):
                        total += d[j]
                        along += d[j] * (v[j] - middle)
                first += total * g[c]
                second += along * g[c]
            first *= per
            second *= per * scale * scale
            for c in range(c0, c0 + channels):
                for r in range(rows):
                    o = after(pointer(out), i * ob + c * oc + r * orow)
                    d, v = after(pointer(dy), i * db + c * dc + r * dr), after(pointer(x), i * xb + c * xc + r * xr)
                    for j in range(cols):
                        o[j] = (d[j] * g[c] - first - (v[j] - middle) * second) * scale


@compiled
def _normal_sums(plan, dy, x, mean, rstd, dg, db, zero):  # type: ignore[no-untyped-def]
    num, groups, channels, rows, cols, sb, sc, sr, xb, xc, xr, mb, mg, rb, rg = plan
    for i in range(num):
        for n in range(groups):
            middle, scale = after(pointer(mean), i * mb + n * mg)[0], after(pointer(rstd), i * rb + n * rg)[0]
            for c in range(n * channels, (n + 1) * channels):
                total = along = zero
                for r in range(rows):
                    d, v = after(pointer(dy), i * sb + c * sc + r * sr), after(pointer(x), i * xb + c * xc + r * xr)
                    for j in range(cols):
                        total += d[j]
                        along += d[j] * (v[j] - middle)
                dg[c] += along * scale
                db[c] += total

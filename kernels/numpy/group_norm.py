"""Group norm and its gradients: each group of channels of a sample is read again while it is in the cache.

It knows no other groups. Places of a channel lie in contiguous rows, as they do in parts of images.
"""

from functools import partial
from math import prod, sqrt
from typing import Any

import numpy as np

from castile.kernels.calls import Call, nothing
from castile.kernels.form import prepares
from castile.kernels.numpy.channels import Channels, channels
from castile.kernels.numpy.copying import onto_zeros
from castile.kernels.numpy.jit import compiled, f32, inlined
from castile.kernels.numpy.pointers import after, pointer
from castile.kernels.numpy.views import is_contiguous, is_forward, strided_operand


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
    if x.size == 0:
        return nothing
    places = channels(y, x)
    if places is None or not (is_contiguous(g) and is_contiguous(b) and is_forward(mean, rstd)):
        return None
    return partial(_normal, *_lain(places, mean, rstd), g, b, _per(x, groups), x.dtype.type(eps))


@prepares
def group_norm_grad_input(
    out: np.ndarray, dy: np.ndarray, x: np.ndarray, g: np.ndarray, mean: np.ndarray, rstd: np.ndarray
) -> Call | None:
    """See the definition."""
    if x.size == 0:
        return nothing
    places = channels(out, dy, x)
    if places is None or not (is_contiguous(g) and is_forward(mean, rstd)):
        return None
    return partial(_normal_grad, *_lain(places, mean, rstd), g, _per(x, mean.shape[1]))


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
    places = channels(dy, x)
    if places is None or not (all(map(is_contiguous, out)) and is_forward(mean, rstd)):
        return None
    work = partial(_normal_sums, *_lain(places, mean, rstd), *out, x.dtype.type(0)) if x.size else nothing
    return onto_zeros(work, accumulate, *out)


def _per(x: np.ndarray, groups: int) -> Any:
    """One over the elements of a group."""
    return x.dtype.type(groups / max(1, prod(x.shape[1:])))


def _lain(places: Channels, mean: np.ndarray, rstd: np.ndarray) -> list[Any]:
    """Arrays of channels and of groups as the loops take them: the number of these, the shape, each with its steps."""
    return [
        mean.shape[1],
        places.shape,
        *zip(places.flats, places.steps, strict=True),
        strided_operand(mean),
        strided_operand(rstd),
    ]


@inlined
def _row(x, sample, channel, row):  # type: ignore[no-untyped-def]
    steps = x[1]
    return after(pointer(x[0]), sample * steps[0] + channel * steps[1] + row * steps[2])


@inlined
def _of(x, sample, group):  # type: ignore[no-untyped-def]
    """Where the number of a group lies."""
    return after(pointer(x[0]), sample * x[1][0] + group * x[1][1])


@compiled
def _normal(groups, shape, y, x, mean, rstd, g, b, per, eps):  # type: ignore[no-untyped-def]
    channels, rows, cols = shape[1] // groups, shape[2], shape[3]
    for i, n in np.ndindex(shape[0], groups):
        first, last = n * channels, (n + 1) * channels
        total = per - per
        for c in range(first, last):
            for r in range(rows):
                v = _row(x, i, c, r)
                for j in range(cols):
                    total += v[j]
        middle = total * per
        total = per - per
        for c in range(first, last):
            for r in range(rows):
                v = _row(x, i, c, r)
                for j in range(cols):
                    total += (v[j] - middle) * (v[j] - middle)
        scale = f32(1) / sqrt(total * per + eps)
        for c in range(first, last):
            gain = scale * g[c]
            for r in range(rows):
                v, o = _row(x, i, c, r), _row(y, i, c, r)
                for j in range(cols):
                    o[j] = (v[j] - middle) * gain + b[c]
        _of(mean, i, n)[0], _of(rstd, i, n)[0] = middle, scale


@compiled
def _normal_grad(groups, shape, out, dy, x, mean, rstd, g, per):  # type: ignore[no-untyped-def]
    channels, rows, cols = shape[1] // groups, shape[2], shape[3]
    for i, n in np.ndindex(shape[0], groups):
        middle, scale = _of(mean, i, n)[0], _of(rstd, i, n)[0]
        first = second = per - per
        for c in range(n * channels, (n + 1) * channels):
            total = along = per - per
            for r in range(rows):
                d, v = _row(dy, i, c, r), _row(x, i, c, r)
                for j in range(cols):
                    total += d[j]
                    along += d[j] * (v[j] - middle)
            first += total * g[c]
            second += along * g[c]
        first *= per
        second *= per * scale * scale
        for c in range(n * channels, (n + 1) * channels):
            for r in range(rows):
                o, d, v = _row(out, i, c, r), _row(dy, i, c, r), _row(x, i, c, r)
                for j in range(cols):
                    o[j] = (d[j] * g[c] - first - (v[j] - middle) * second) * scale


@compiled
def _normal_sums(groups, shape, dy, x, mean, rstd, dg, db, zero):  # type: ignore[no-untyped-def]
    channels, rows, cols = shape[1] // groups, shape[2], shape[3]
    for i, n in np.ndindex(shape[0], groups):
        middle, scale = _of(mean, i, n)[0], _of(rstd, i, n)[0]
        for c in range(n * channels, (n + 1) * channels):
            total = along = zero
            for r in range(rows):
                d, v = _row(dy, i, c, r), _row(x, i, c, r)
                for j in range(cols):
                    total += d[j]
                    along += d[j] * (v[j] - middle)
            dg[c] += along * scale
            db[c] += total

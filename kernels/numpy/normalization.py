"""Layer norm and RMS norm over the last dim, and their gradients, row by row.

It knows no other statistics.
"""

from math import sqrt

import numpy as np

from castile.kernels.calls import Call
from castile.kernels.form import prepares
from castile.kernels.numpy.copying import onto_zeros
from castile.kernels.numpy.jit import compiled, f32
from castile.kernels.numpy.views import by_rows, is_contiguous


@prepares
def layer_norm(
    out: tuple[np.ndarray, np.ndarray, np.ndarray], x: np.ndarray, g: np.ndarray, b: np.ndarray, *, eps: float
) -> Call | None:
    """See the definition."""
    if not (is_contiguous(g) and is_contiguous(b)):
        return None
    real = x.dtype.type
    return by_rows(_normal, [out[0], x], g, b, real(1 / x.shape[-1]), real(eps), bare=[*out[1:]])


@prepares
def layer_norm_grad_input(
    out: np.ndarray,
    dy: np.ndarray,
    x: np.ndarray,
    g: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    onto: np.ndarray | None = None,
) -> Call | None:
    """See the definition."""
    if not is_contiguous(g):
        return None
    arrays = [out, dy, x, out if onto is None else onto]
    return by_rows(_normal_grad, arrays, g, x.dtype.type(1 / x.shape[-1]), onto is not None, bare=[mean, rstd])


@prepares
def layer_norm_grad_params(
    out: tuple[np.ndarray, np.ndarray],
    dy: np.ndarray,
    x: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    *,
    accumulate: bool,
) -> Call | None:
    """See the definition."""
    if not all(map(is_contiguous, out)):
        return None
    return onto_zeros(by_rows(_normal_sums, [dy, x], *out, bare=[mean, rstd]), accumulate, *out)


@prepares
def rms_norm(out: tuple[np.ndarray, np.ndarray], x: np.ndarray, g: np.ndarray, *, eps: float) -> Call | None:
    """See the definition."""
    if not is_contiguous(g):
        return None
    real = x.dtype.type
    return by_rows(_rms, [out[0], x], g, real(1 / x.shape[-1]), real(eps), bare=[out[1]])


@prepares
def rms_norm_grad_input(
    out: np.ndarray, dy: np.ndarray, x: np.ndarray, g: np.ndarray, rstd: np.ndarray, onto: np.ndarray | None = None
) -> Call | None:
    """See the definition."""
    if not is_contiguous(g):
        return None
    arrays = [out, dy, x, out if onto is None else onto]
    return by_rows(_rms_grad, arrays, g, x.dtype.type(1 / x.shape[-1]), onto is not None, bare=[rstd])


@prepares
def rms_norm_grad_params(
    out: np.ndarray, dy: np.ndarray, x: np.ndarray, rstd: np.ndarray, *, accumulate: bool
) -> Call | None:
    """See the definition."""
    if not is_contiguous(out):
        return None
    return onto_zeros(by_rows(_rms_sums, [dy, x], out, bare=[rstd]), accumulate, out)


@compiled
def _normal(rows, cols, y, sy, x, sx, mean, sm, rstd, sr, g, b, per_col, eps):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, v = y[r * sy : r * sy + cols], x[r * sx : r * sx + cols]
        total = per_col - per_col
        for j in range(cols):
            total += v[j]
        middle = total * per_col
        total = per_col - per_col
        for j in range(cols):
            total += (v[j] - middle) * (v[j] - middle)
        # sqrt of a float32 is a float32 in numba.
        scale = f32(1) / sqrt(total * per_col + eps)
        for j in range(cols):
            o[j] = (v[j] - middle) * scale * g[j] + b[j]
        mean[r * sm] = middle
        rstd[r * sr] = scale


@compiled
def _normal_grad(rows, cols, out, so, dy, sd, x, sx, onto, st, mean, sm, rstd, sr, g, per_col, adds):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, d, v = out[r * so : r * so + cols], dy[r * sd : r * sd + cols], x[r * sx : r * sx + cols]
        middle, scale = mean[r * sm], rstd[r * sr]
        first = second = per_col - per_col
        for j in range(cols):
            grad = d[j] * g[j]
            first += grad
            second += grad * (v[j] - middle)
        first *= per_col
        second *= per_col * scale
        for j in range(cols):
            o[j] = (d[j] * g[j] - first - (v[j] - middle) * scale * second) * scale
        if adds:
            more = onto[r * st : r * st + cols]
            for j in range(cols):
                o[j] += more[j]


@compiled
def _normal_sums(rows, cols, dy, sd, x, sx, mean, sm, rstd, sr, dg, db):  # type: ignore[no-untyped-def]
    for r in range(rows):
        d, v = dy[r * sd : r * sd + cols], x[r * sx : r * sx + cols]
        middle, scale = mean[r * sm], rstd[r * sr]
        for j in range(cols):
            dg[j] += d[j] * (v[j] - middle) * scale
            db[j] += d[j]


@compiled
def _rms(rows, cols, y, sy, x, sx, rstd, sr, g, per_col, eps):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, v = y[r * sy : r * sy + cols], x[r * sx : r * sx + cols]
        total = per_col - per_col
        for j in range(cols):
            total += v[j] * v[j]
        scale = f32(1) / sqrt(total * per_col + eps)
        for j in range(cols):
            o[j] = v[j] * scale * g[j]
        rstd[r * sr] = scale


@compiled
def _rms_grad(rows, cols, out, so, dy, sd, x, sx, onto, st, rstd, sr, g, per_col, adds):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, d, v = out[r * so : r * so + cols], dy[r * sd : r * sd + cols], x[r * sx : r * sx + cols]
        scale = rstd[r * sr]
        along = per_col - per_col
        for j in range(cols):
            along += d[j] * g[j] * v[j]
        along *= per_col * scale * scale
        for j in range(cols):
            o[j] = (d[j] * g[j] - v[j] * along) * scale
        if adds:
            more = onto[r * st : r * st + cols]
            for j in range(cols):
                o[j] += more[j]


@compiled
def _rms_sums(rows, cols, dy, sd, x, sx, rstd, sr, dg):  # type: ignore[no-untyped-def]
    for r in range(rows):
        d, v = dy[r * sd : r * sd + cols], x[r * sx : r * sx + cols]
        scale = rstd[r * sr]
        for j in range(cols):
            dg[j] += d[j] * v[j] * scale

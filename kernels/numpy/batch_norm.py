"""Batch normalisation: moments, what x meets, and the gradients, one pass over x each.

It knows no layer. Rows of places are summed in their own dtype or in float64, and these sums in float64.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from typing import Any

import numpy as np

from castile.kernels.form import prepares
from castile.kernels.numpy.channels import channels
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.lanes import after, pointer, spare

Call = Callable[[], Any]


@prepares
def moments(out: np.ndarray, x: np.ndarray, *, scale: float, accumulate: bool) -> Call | None:
    """See the definition."""
    return _work(_moments, [x], out, scale, accumulate)


@prepares
def moments_grad(out: np.ndarray, dm: np.ndarray, x: np.ndarray, *, scale: float, accumulate: bool) -> Call | None:
    """See the definition."""
    return _work(_moments_grad, [out, x], dm, x.dtype.type(scale), accumulate)


@prepares
def norm(out: np.ndarray, x: np.ndarray, factors: np.ndarray) -> Call | None:
    """See the definition."""
    return _work(_norm, [out, x], factors)


@prepares
def norm_grad(out: tuple[np.ndarray, np.ndarray], dy: np.ndarray, x: np.ndarray, factors: np.ndarray) -> Call | None:
    """See the definition."""
    return _work(_norm_grad, [out[0], dy, x], factors, out[1])


@prepares
def norm_factors(out: np.ndarray, gain: np.ndarray, shift: np.ndarray, *statistics: np.ndarray, eps: float) -> Call:
    """See the definition."""
    mean, second = _pair(statistics)
    return partial(_factors, out, gain, shift, mean, second, eps, len(statistics) == 2)


@prepares
def norm_factors_grad(
    out: tuple[np.ndarray, ...], df: np.ndarray, gain: np.ndarray, *statistics: np.ndarray, eps: float
) -> Call:
    """See the definition."""
    d_gain, d_shift, *found = out
    return partial(
        _factors_grad, d_gain, d_shift, *_pair(found), df, gain, *_pair(statistics), eps, len(statistics) == 2
    )


@prepares
def running_moment(
    out: np.ndarray, old: np.ndarray, m: np.ndarray, *, momentum: float, count: int, variance: bool
) -> Call:
    """See the definition."""
    return partial(_running, out, old, m, momentum, count / (count - 1), variance)


def _pair(statistics: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and variance or mean of the square."""
    first, second = statistics if len(statistics) == 2 else (statistics[0][0], statistics[0][1])
    return first, second


def _work(loop: Callable[..., Any], arrays: list[np.ndarray], *how: Any) -> Call | None:
    """`loop` over arrays of one shape [b,c,...]; None where their rows do not lie dense."""
    found = channels(*arrays)
    return None if found is None else partial(loop, *found.flats, *found.steps, found.shape, *how)


@compiled
def _moments(x, steps, shape, out, scale, adds):  # type: ignore[no-untyped-def]
    p_x = pointer(x)
    for c in range(shape[1]):
        total = square = 0.0
        for b, h in np.ndindex(shape[0], shape[2]):
            row = after(p_x, b * steps[0] + c * steps[1] + h * steps[2])
            for w in range(shape[3]):
                value = np.float64(row[w])
                total += value
                square += value * value
        out[0, c] = out[0, c] + total * scale if adds else total * scale
        out[1, c] = out[1, c] + square * scale if adds else square * scale


@compiled
def _moments_grad(out, x, to, steps, shape, dm, scale, adds):  # type: ignore[no-untyped-def]
    p_out, p_x, held = pointer(out), pointer(x), spare(x)
    for b, c in np.ndindex(shape[0], shape[1]):
        # what is stored has x's dtype, in which the loop then stays
        held[0], held[1] = dm[0, c] * scale, 2 * dm[1, c] * scale
        constant, slope = held[0], held[1]
        for h in range(shape[2]):
            o = after(p_out, b * to[0] + c * to[1] + h * to[2])
            row = after(p_x, b * steps[0] + c * steps[1] + h * steps[2])
            if adds:
                for w in range(shape[3]):
                    o[w] += constant + slope * row[w]
            else:
                for w in range(shape[3]):
                    o[w] = constant + slope * row[w]


@compiled
def _norm(out, x, to, steps, shape, factors):  # type: ignore[no-untyped-def]
    p_out, p_x = pointer(out), pointer(x)
    for b, c in np.ndindex(shape[0], shape[1]):
        mean, scale, shift = factors[0, c], factors[1, c], factors[2, c]
        for h in range(shape[2]):
            o = after(p_out, b * to[0] + c * to[1] + h * to[2])
            row = after(p_x, b * steps[0] + c * steps[1] + h * steps[2])
            for w in range(shape[3]):
                o[w] = (row[w] - mean) * scale + shift


@compiled
def _norm_grad(out, dy, x, to, of, steps, shape, factors, slopes):  # type: ignore[no-untyped-def]
    p_out, p_dy, p_x = pointer(out), pointer(dy), pointer(x)
    for c in range(shape[1]):
        mean, scale = factors[0, c], factors[1, c]
        total = moved = 0.0
        for b, h in np.ndindex(shape[0], shape[2]):
            o = after(p_out, b * to[0] + c * to[1] + h * to[2])
            d = after(p_dy, b * of[0] + c * of[1] + h * of[2])
            row = after(p_x, b * steps[0] + c * steps[1] + h * steps[2])
            first = second = mean - mean
            for w in range(shape[3]):
                first += d[w]
                second += d[w] * (row[w] - mean)
                o[w] = d[w] * scale
            total += first
            moved += second
        slopes[0, c], slopes[1, c], slopes[2, c] = -scale * total, moved, total


@compiled
def _factors(out, gain, shift, mean, second, eps, central):  # type: ignore[no-untyped-def]
    for c in range(gain.size):
        middle = np.float64(mean[c])
        variance = second[c] if central else second[c] - middle * middle
        out[0, c] = middle
        out[1, c] = gain[c] / sqrt(max(variance, 0.0) + eps)
        out[2, c] = shift[c]


@compiled
def _factors_grad(d_gain, d_shift, d_mean, d_second, df, gain, mean, second, eps, central):  # type: ignore[no-untyped-def]
    for c in range(gain.size):
        middle = np.float64(mean[c])
        variance = second[c] if central else second[c] - middle * middle
        rate = 1 / sqrt(max(variance, 0.0) + eps)
        spread = -0.5 * np.float64(df[1, c]) * gain[c] * rate * rate * rate if variance >= 0 else 0.0
        d_mean[c] = df[0, c] if central else df[0, c] - 2 * middle * spread
        d_second[c] = spread
        d_gain[c], d_shift[c] = df[1, c] * rate, df[2, c]


@compiled
def _running(out, old, m, momentum, unbiased, variance):  # type: ignore[no-untyped-def]
    for c in range(old.size):
        new = (m[1, c] - m[0, c] * m[0, c]) * unbiased if variance else m[0, c]
        out[c] = (1 - momentum) * old[c] + momentum * new

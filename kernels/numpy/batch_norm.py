"""Batch normalisation: moments, what x meets, and the gradients, one pass over x each.

It knows no layer. Rows of places are summed in their own dtype or in float64, and these sums in float64.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import sqrt
from typing import Any

import numpy as np

from castile.kernels.arithmetic import parse
from castile.kernels.calls import Call
from castile.kernels.form import prepares
from castile.kernels.numpy.channels import channels
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.lanes import after, pointer, spare
from castile.kernels.numpy.lines import filled, from_text, typed

# The gradients of x and of its factors, where that of the result is a line's value.
_SLOPES = """
def {name}(out, seen{arrays}, to, of{steps}, shape, factors, slopes{constants}):
    to_first, of_first = pointer(out), pointer(seen)
    {begin}
    for channel in range(shape[1]):
        mean, scale = factors[0, channel], factors[1, channel]
        total = moved = 0.0
        for sample, line in np.ndindex(shape[0], shape[2]):
            to_line = after(to_first, sample * to[0] + channel * to[1] + line * to[2])
            of_line = after(of_first, sample * of[0] + channel * of[1] + line * of[2])
            {fetch}
            first = second = mean - mean
            for place in range(shape[3]):
                {load}
                slope = {value}
                first += slope
                second += slope * (of_line[place] - mean)
                to_line[place] = slope * scale
            total += first
            moved += second
        slopes[0, channel], slopes[1, channel], slopes[2, channel] = -scale * total, moved, total
"""


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
    return _slopes(out, "d -> d", [dy], x, factors, {})


@prepares
def norm_grad_pointwise(
    out: tuple[np.ndarray, np.ndarray], line: str, x: np.ndarray, factors: np.ndarray, *ys: Any, **constants: float
) -> Call | None:
    """See the definition."""
    return _slopes(out, line, list(ys), x, factors, constants)


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


def _slopes(
    out: tuple[np.ndarray, np.ndarray], line: str, ys: list[np.ndarray], x: np.ndarray, factors: np.ndarray,
    constants: dict[str, float],
) -> Call | None:  # fmt: skip
    """The gradients of `norm` where its result's is what a line makes of ys."""
    loop = _slopes_of(line, tuple(constants), x.dtype.name)
    return _work(loop, [out[0], x, *ys], factors, out[1], *map(x.dtype.type, constants.values()))


@cache
def _slopes_of(line: str, constants: tuple[str, ...], dtype: str) -> Callable[..., Any]:
    """The loop of a line over out, x and arrays."""
    names, value = parse(line)
    parts = {
        "begin": [f"p_{y} = pointer(a_{y})" for y in names],
        "fetch": [f"v_{y} = after(p_{y}, sample * s_{y}[0] + channel * s_{y}[1] + line * s_{y}[2])" for y in names],
        "load": [f"{y} = v_{y}[place]" for y in names],
    }
    arrays, steps = ("".join(f", {letter}_{y}" for y in names) for letter in "as")
    last = "".join(f", {c}" for c in constants)
    return from_text(filled(_SLOPES, parts, arrays=arrays, steps=steps, constants=last, value=typed(value)), dtype)


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
        spread = -0.5 * np.float64(df[1, c]) * gain[c] * (0.0 if variance < 0 else rate * rate * rate)
        d_mean[c] = df[0, c] if central else df[0, c] - 2 * middle * spread
        d_second[c] = spread
        d_gain[c], d_shift[c] = df[1, c] * rate, df[2, c]


@compiled
def _running(out, old, m, momentum, unbiased, variance):  # type: ignore[no-untyped-def]
    for c in range(old.size):
        new = (m[1, c] - m[0, c] * m[0, c]) * unbiased if variance else m[0, c]
        out[c] = (1 - momentum) * old[c] + momentum * new

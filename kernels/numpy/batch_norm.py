"""Batch norm: moments, normalisation, and the gradients, one pass over x each.

It knows no layer. Rows of places are summed in their own dtype or in float64, and these sums in float64.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import sqrt
from typing import Any

import numpy as np

from castile.kernels.calls import Call, chain_all
from castile.kernels.expression import parse
from castile.kernels.form import prepares
from castile.kernels.numpy.channels import channels
from castile.kernels.numpy.codegen import fill_template, from_text, typed_text
from castile.kernels.numpy.jit import compiled, inlined
from castile.kernels.numpy.pointers import after, pointer, spare
from castile.kernels.numpy.views import is_forward, strided_operand

# A loop that sums and writes goes element by element, not by vectors, where what it writes begins within some hundred
# bytes of what it reads. Arrays of fewer bytes would have other sums elsewhere in memory, and so copies of parameters
# come apart: these are left to the definition.
_FEW_BYTES = 1024

# The gradients of x and of its factors, where that of the result is an expression's value.
_SLOPES = """
def {name}(out, seen{arrays}, to, of{steps}, shape, factors, grads{constants}):
    to_first, of_first = pointer(out), pointer(seen)
    {begin}
    for channel in range(shape[1]):
        given = after(pointer(factors[0]), channel * factors[1][1])
        mean, scale = given[0], given[factors[1][0]]
        total = moved = 0.0
        for sample, line in np.ndindex(shape[0], shape[2]):
            to_line = after(to_first, sample * to[0] + channel * to[1] + line * to[2])
            of_line = after(of_first, sample * of[0] + channel * of[1] + line * of[2])
            {fetch}
            first = second = mean - mean
            for place in range(shape[3]):
                {load}
                grad = {value}
                {keep}
                first += grad
                second += grad * (of_line[place] - mean)
                to_line[place] = grad * scale
            total += first
            moved += second
        found, row = after(pointer(grads[0]), channel * grads[1][1]), grads[1][0]
        found[0], found[row], found[2 * row] = -scale * total, moved, total
"""


@prepares
def moments(out: np.ndarray, x: np.ndarray, *, scale: float, accumulate: bool) -> Call | None:
    """See the definition."""
    return _work(_moments, [x], [out], scale, accumulate)


@prepares
def moments_grad(out: np.ndarray, dm: np.ndarray, x: np.ndarray, *, scale: float, accumulate: bool) -> Call | None:
    """See the definition."""
    return _work(_moments_grad, [out, x], [dm], x.dtype.type(scale), accumulate)


@prepares
def norm(out: np.ndarray, x: np.ndarray, factors: np.ndarray) -> Call | None:
    """See the definition."""
    return _work(_norm, [out, x], [factors])


@prepares
def norm_grad(out: tuple[np.ndarray, np.ndarray], dy: np.ndarray, x: np.ndarray, factors: np.ndarray) -> Call | None:
    """See the definition."""
    return _grads(out, "d -> d", [dy], x, factors, {})


@prepares
def norm_grad_pointwise(
    out: tuple[np.ndarray, ...],
    expression: str,
    x: np.ndarray,
    factors: np.ndarray,
    *ys: Any,
    keeps: bool = False,
    **constants: float,
) -> Call | None:
    """See the definition."""
    return _grads(out, expression, list(ys), x, factors, constants)


@prepares
def norm_factors(
    out: np.ndarray, gain: np.ndarray, shift: np.ndarray, *statistics: np.ndarray, eps: float
) -> Call | None:
    """See the definition."""
    return _of_channels(_factors, [gain, shift, *_pair(statistics), out], eps, len(statistics) == 2)


@prepares
def norm_factors_grad(
    out: tuple[np.ndarray, ...], df: np.ndarray, gain: np.ndarray, *statistics: np.ndarray, eps: float
) -> Call | None:
    """See the definition."""
    d_gain, d_shift, *found = out
    arrays = [gain, *_pair(statistics), d_gain, d_shift, *_pair(found), df]
    return _of_channels(_factors_grad, arrays, eps, len(statistics) == 2)


@prepares
def running_moment(
    out: np.ndarray | tuple[np.ndarray, ...],
    old: np.ndarray,
    m: np.ndarray,
    *more: np.ndarray,
    momentum: float,
    count: int,
    variance: bool,
) -> Call | None:
    """See the definition."""
    every, how = (old, m, *more), (momentum, count / (count - 1), variance)
    outs = out if isinstance(out, tuple) else (out,)
    return chain_all(_of_channels(_running, [*one], *how) for one in zip(every[::2], outs, every[1::2], strict=True))


def _pair(statistics: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and variance or mean of the square."""
    first, second = statistics if len(statistics) == 2 else (statistics[0][0], statistics[0][1])
    return first, second


def _work(loop: Callable[..., Any], arrays: list[np.ndarray], rows: list[np.ndarray], *how: Any) -> Call | None:
    """`loop` over arrays of one shape [b,c,...] and rows [...,c]; None where places of the first do not lie dense."""
    found = channels(*arrays)
    if found is None or not is_forward(*rows):
        return None
    return partial(loop, *found.flats, *found.steps, found.shape, *map(strided_operand, rows), *how)


def _of_channels(loop: Callable[..., Any], arrays: list[np.ndarray], *how: Any) -> Call | None:
    """`loop` over arrays [...,c], the first of them [c]; None where one does not lie evenly."""
    return partial(loop, arrays[0].size, *map(strided_operand, arrays), *how) if is_forward(*arrays) else None


def _grads(
    out: tuple[np.ndarray, ...], expression: str, ys: list[np.ndarray], x: np.ndarray, factors: np.ndarray,
    constants: dict[str, float],
) -> Call | None:  # fmt: skip
    """The gradients of `norm` where its result's is an expression's value of ys, and that if it is wanted; None of few
    bytes.
    """
    if x.nbytes < _FEW_BYTES:
        return None
    to, grads, *kept = out
    loop = _grads_of(expression, tuple(constants), bool(kept), x.dtype.name)
    return _work(loop, [to, x, *ys, *kept], [factors, grads], *map(x.dtype.type, constants.values()))


@cache
def _grads_of(expression: str, constants: tuple[str, ...], keeps: bool, dtype: str) -> Callable[..., Any]:
    """The loop of an expression over out, x and arrays, the last of them for its value if that is kept."""
    names, value = parse(expression)
    every = [*names, *["_kept"] * keeps]
    parts = {
        "begin": [f"p_{y} = pointer(a_{y})" for y in every],
        "fetch": [f"v_{y} = after(p_{y}, sample * s_{y}[0] + channel * s_{y}[1] + line * s_{y}[2])" for y in every],
        "load": [f"{y} = v_{y}[place]" for y in names],
        "keep": [f"v_{y}[place] = grad" for y in every[len(names) :]],
    }
    arrays, steps = ("".join(f", {letter}_{y}" for y in every) for letter in "as")
    last = "".join(f", {c}" for c in constants)
    return from_text(
        fill_template(_SLOPES, parts, arrays=arrays, steps=steps, constants=last, value=typed_text(value)), dtype
    )


@inlined
def _at(x, c):  # type: ignore[no-untyped-def]
    """Where the first number of a channel lies."""
    return after(pointer(x[0]), c * x[1][-1])


@compiled
def _moments(x, steps, shape, out, scale, adds):  # type: ignore[no-untyped-def]
    p_x, row = pointer(x), out[1][0]
    for c in range(shape[1]):
        total = square = 0.0
        for b, h in np.ndindex(shape[0], shape[2]):
            expression = after(p_x, b * steps[0] + c * steps[1] + h * steps[2])
            for w in range(shape[3]):
                value = np.float64(expression[w])
                total += value
                square += value * value
        o = _at(out, c)
        o[0] = o[0] + total * scale if adds else total * scale
        o[row] = o[row] + square * scale if adds else square * scale


@compiled
def _moments_grad(out, x, to, steps, shape, dm, scale, adds):  # type: ignore[no-untyped-def]
    p_out, p_x, held = pointer(out), pointer(x), spare(x)
    for b, c in np.ndindex(shape[0], shape[1]):
        # what is stored has x's dtype, in which the loop then stays
        d = _at(dm, c)
        held[0], held[1] = d[0] * scale, 2 * d[dm[1][0]] * scale
        constant, grad = held[0], held[1]
        for h in range(shape[2]):
            o = after(p_out, b * to[0] + c * to[1] + h * to[2])
            row = after(p_x, b * steps[0] + c * steps[1] + h * steps[2])
            if adds:
                for w in range(shape[3]):
                    o[w] += constant + grad * row[w]
            else:
                for w in range(shape[3]):
                    o[w] = constant + grad * row[w]


@compiled
def _norm(out, x, to, steps, shape, factors):  # type: ignore[no-untyped-def]
    p_out, p_x, row = pointer(out), pointer(x), factors[1][0]
    for b, c in np.ndindex(shape[0], shape[1]):
        f = _at(factors, c)
        mean, scale, shift = f[0], f[row], f[2 * row]
        for h in range(shape[2]):
            o = after(p_out, b * to[0] + c * to[1] + h * to[2])
            v = after(p_x, b * steps[0] + c * steps[1] + h * steps[2])
            for w in range(shape[3]):
                o[w] = (v[w] - mean) * scale + shift


@inlined
def _statistics(mean, second, c, central):  # type: ignore[no-untyped-def]
    """Mean and variance of a channel; of moments its second is the mean square."""
    middle, other = np.float64(_at(mean, c)[0]), np.float64(_at(second, c)[0])
    return middle, other if central else other - middle * middle


@compiled
def _factors(num, gain, shift, mean, second, out, eps, central):  # type: ignore[no-untyped-def]
    row = out[1][0]
    for c in range(num):
        middle, variance = _statistics(mean, second, c, central)
        o = _at(out, c)
        o[0] = middle
        o[row] = _at(gain, c)[0] / sqrt(max(variance, 0.0) + eps)
        o[2 * row] = _at(shift, c)[0]


@compiled
def _factors_grad(  # type: ignore[no-untyped-def]
    num, gain, mean, second, d_gain, d_shift, d_mean, d_second, df, eps, central
):
    row = df[1][0]
    for c in range(num):
        middle, variance = _statistics(mean, second, c, central)
        d = _at(df, c)
        rate = 1 / sqrt(max(variance, 0.0) + eps)
        spread = -0.5 * np.float64(d[row]) * _at(gain, c)[0] * (0.0 if variance < 0 else rate * rate * rate)
        _at(d_mean, c)[0] = d[0] if central else d[0] - 2 * middle * spread
        _at(d_second, c)[0] = spread
        _at(d_gain, c)[0], _at(d_shift, c)[0] = d[row] * rate, d[2 * row]


@compiled
def _running(num, old, out, m, momentum, unbiased, variance):  # type: ignore[no-untyped-def]
    row = m[1][0]
    for c in range(num):
        mean, square = _at(m, c)[0], _at(m, c)[row]
        new = (square - mean * mean) * unbiased if variance else mean
        _at(out, c)[0] = (1 - momentum) * _at(old, c)[0] + momentum * new

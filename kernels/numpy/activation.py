"""Activations and their gradients, in one pass over memory.

It knows no layer.
"""

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import numpy as np

from castile.kernels.form import prepares
from castile.kernels.numpy.elementwise import pointwise
from castile.kernels.numpy.jit import compiled, exp, f32, normal_tail
from castile.kernels.numpy.pointers import after, pointer, spare
from castile.kernels.numpy.strided import FIRST, SECOND, THIRD, block_size, elementwise, fetch, num_rows, room, settle

# (1 + tanh(u)) / 2 is the sigmoid of 2u, which loses no digits where tanh(u) nears -1.
_GATE = "sigmoid(x * (a + b * x * x))"
_GELU = f"x -> x * {_GATE}"
_GELU_GRAD = f"d, x -> d * {_GATE} * (1 + x * (1 - {_GATE}) * (a + 3 * b * x * x))"
_TANH = {"a": sqrt(8 / pi), "b": sqrt(8 / pi) * 0.044715}


@prepares
def relu(out: np.ndarray, x: np.ndarray) -> Callable[[], Any] | None:
    """See the definition."""
    # Asked this way round, a NaN stays.
    return pointwise(out, "x -> where(x <= 0, 0, x)", x, accumulate=False)


@prepares
def relu_grad(out: np.ndarray, dy: np.ndarray, x: np.ndarray) -> Callable[[], Any] | None:
    """See the definition."""
    return pointwise(out, "d, x -> where(x > 0, d, 0)", dy, x, accumulate=False)


@prepares
def gelu(out: np.ndarray, x: np.ndarray, *, approximate: str) -> Callable[[], Any] | None:
    """See the definition."""
    if approximate == "tanh":
        return pointwise(out, _GELU, x, accumulate=False, **_TANH)
    return elementwise(_gelu, [out, x])


@prepares
def gelu_grad(out: np.ndarray, dy: np.ndarray, x: np.ndarray, *, approximate: str) -> Callable[[], Any] | None:
    """See the definition."""
    if approximate == "tanh":
        return pointwise(out, _GELU_GRAD, dy, x, accumulate=False, **_TANH)
    return elementwise(_gelu_grad, [out, dy, x], x.dtype.type(1 / sqrt(2 * pi)))


@compiled
def _gelu(walk, out, x):  # type: ignore[no-untyped-def]
    plan, p_out, p_x = pointer(walk), pointer(out), pointer(x)
    s_out, s_x = after(plan, FIRST), after(plan, SECOND)
    a, b = spare(out), spare(x)
    for first in range(0, num_rows(plan), plan[4]):
        o, v = room(plan, s_out, p_out, first, a), fetch(plan, s_x, p_x, first, b)
        for j in range(block_size(plan, first)):
            tail = normal_tail(abs(v[j]), exp(f32(-0.5) * v[j] * v[j]))
            o[j] = v[j] * (f32(1) - tail if v[j] > 0 else tail)
        settle(plan, s_out, p_out, first, a)


@compiled
def _gelu_grad(walk, out, dy, x, norm):  # type: ignore[no-untyped-def]
    plan, p_out, p_dy, p_x = pointer(walk), pointer(out), pointer(dy), pointer(x)
    s_out, s_dy, s_x = after(plan, FIRST), after(plan, SECOND), after(plan, THIRD)
    a, b, c = spare(out), spare(dy), spare(x)
    for first in range(0, num_rows(plan), plan[4]):
        o, d, v = room(plan, s_out, p_out, first, a), fetch(plan, s_dy, p_dy, first, b), fetch(plan, s_x, p_x, first, c)
        for j in range(block_size(plan, first)):
            density = exp(f32(-0.5) * v[j] * v[j])
            tail = normal_tail(abs(v[j]), density)
            o[j] = d[j] * ((f32(1) - tail if v[j] > 0 else tail) + v[j] * density * norm)
        settle(plan, s_out, p_out, first, a)

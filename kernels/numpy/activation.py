"""Elementwise activations and their gradients, in one pass over memory.

It knows no layer.
"""

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import numpy as np

from castile.kernels.form import prepares
from castile.kernels.numpy.jit import compiled, exp, f32, normal_tail
from castile.kernels.numpy.lanes import after, pointer, spare
from castile.kernels.numpy.walk import FIRST, SECOND, THIRD, block_size, elementwise, fetch, num_rows, room, settle


@prepares
def relu(out: np.ndarray, x: np.ndarray) -> Callable[[], Any] | None:
    """See the definition."""
    return elementwise(_relu, [out, x])


@prepares
def relu_grad(out: np.ndarray, dy: np.ndarray, x: np.ndarray) -> Callable[[], Any] | None:
    """See the definition."""
    return elementwise(_relu_grad, [out, dy, x])


@prepares
def gelu(out: np.ndarray, x: np.ndarray, *, approximate: str) -> Callable[[], Any] | None:
    """See the definition."""
    if approximate == "tanh":
        return elementwise(_gelu_tanh, [out, x], *_tanh_constants(x.dtype))
    return elementwise(_gelu, [out, x])


@prepares
def gelu_grad(out: np.ndarray, dy: np.ndarray, x: np.ndarray, *, approximate: str) -> Callable[[], Any] | None:
    """See the definition."""
    if approximate == "tanh":
        return elementwise(_gelu_tanh_grad, [out, dy, x], *_tanh_constants(x.dtype))
    return elementwise(_gelu_grad, [out, dy, x], x.dtype.type(1 / sqrt(2 * pi)))


def _tanh_constants(dtype: np.dtype) -> tuple[Any, Any]:
    # A float64 constant inside a float32 loop would make the loop float64.
    return dtype.type(sqrt(8 / pi)), dtype.type(sqrt(8 / pi) * 0.044715)


@compiled
def _relu(walk, out, x):  # type: ignore[no-untyped-def]
    plan, p_out, p_x = pointer(walk), pointer(out), pointer(x)
    s_out, s_x = after(plan, FIRST), after(plan, SECOND)
    a, b = spare(out), spare(x)
    for first in range(0, num_rows(plan), plan[4]):
        o, v = room(plan, s_out, p_out, first, a), fetch(plan, s_x, p_x, first, b)
        for j in range(block_size(plan, first)):
            # Asked this way round, a NaN stays.
            o[j] = f32(0) if v[j] <= 0 else v[j]
        settle(plan, s_out, p_out, first, a)


@compiled
def _relu_grad(walk, out, dy, x):  # type: ignore[no-untyped-def]
    plan, p_out, p_dy, p_x = pointer(walk), pointer(out), pointer(dy), pointer(x)
    s_out, s_dy, s_x = after(plan, FIRST), after(plan, SECOND), after(plan, THIRD)
    a, b, c = spare(out), spare(dy), spare(x)
    for first in range(0, num_rows(plan), plan[4]):
        o, d, v = room(plan, s_out, p_out, first, a), fetch(plan, s_dy, p_dy, first, b), fetch(plan, s_x, p_x, first, c)
        for j in range(block_size(plan, first)):
            o[j] = d[j] if v[j] > 0 else f32(0)
        settle(plan, s_out, p_out, first, a)


@compiled
def _gelu_tanh(walk, out, x, c1, c3):  # type: ignore[no-untyped-def]
    plan, p_out, p_x = pointer(walk), pointer(out), pointer(x)
    s_out, s_x = after(plan, FIRST), after(plan, SECOND)
    a, b = spare(out), spare(x)
    for first in range(0, num_rows(plan), plan[4]):
        o, v = room(plan, s_out, p_out, first, a), fetch(plan, s_x, p_x, first, b)
        for j in range(block_size(plan, first)):
            # (1 + tanh(u)) / 2 is the sigmoid of 2u, which loses no digits where tanh(u) nears -1.
            o[j] = v[j] / (f32(1) + exp(-v[j] * (c1 + c3 * v[j] * v[j])))
        settle(plan, s_out, p_out, first, a)


@compiled
def _gelu_tanh_grad(walk, out, dy, x, c1, c3):  # type: ignore[no-untyped-def]
    plan, p_out, p_dy, p_x = pointer(walk), pointer(out), pointer(dy), pointer(x)
    s_out, s_dy, s_x = after(plan, FIRST), after(plan, SECOND), after(plan, THIRD)
    a, b, c = spare(out), spare(dy), spare(x)
    for first in range(0, num_rows(plan), plan[4]):
        o, d, v = room(plan, s_out, p_out, first, a), fetch(plan, s_dy, p_dy, first, b), fetch(plan, s_x, p_x, first, c)
        for j in range(block_size(plan, first)):
            square = v[j] * v[j]
            gate = f32(1) / (f32(1) + exp(-v[j] * (c1 + c3 * square)))
            slope = gate * (f32(1) - gate) * (c1 + f32(3) * c3 * square)
            o[j] = d[j] * (gate + v[j] * slope)
        settle(plan, s_out, p_out, first, a)


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

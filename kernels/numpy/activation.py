"""Elementwise activations and their gradients, in one pass over memory.

It knows no layer.
"""

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import numpy as np

from castile.kernels.form import prepares
from castile.kernels.numpy.jit import compiled, exp, f32, normal_tail
from castile.kernels.numpy.views import elementwise


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
def _relu(rows, cols, out, so, x, sx):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, v = out[r * so : r * so + cols], x[r * sx : r * sx + cols]
        for j in range(cols):
            # Asked this way round, a NaN stays.
            o[j] = f32(0) if v[j] <= 0 else v[j]


@compiled
def _relu_grad(rows, cols, out, so, dy, sd, x, sx):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, d, v = out[r * so : r * so + cols], dy[r * sd : r * sd + cols], x[r * sx : r * sx + cols]
        for j in range(cols):
            o[j] = d[j] if v[j] > 0 else f32(0)


@compiled
def _gelu_tanh(rows, cols, out, so, x, sx, c1, c3):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, v = out[r * so : r * so + cols], x[r * sx : r * sx + cols]
        for j in range(cols):
            # (1 + tanh(u)) / 2 is the sigmoid of 2u, which loses no digits where tanh(u) nears -1.
            o[j] = v[j] / (f32(1) + exp(-v[j] * (c1 + c3 * v[j] * v[j])))


@compiled
def _gelu_tanh_grad(rows, cols, out, so, dy, sd, x, sx, c1, c3):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, d, v = out[r * so : r * so + cols], dy[r * sd : r * sd + cols], x[r * sx : r * sx + cols]
        for j in range(cols):
            square = v[j] * v[j]
            gate = f32(1) / (f32(1) + exp(-v[j] * (c1 + c3 * square)))
            slope = gate * (f32(1) - gate) * (c1 + f32(3) * c3 * square)
            o[j] = d[j] * (gate + v[j] * slope)


@compiled
def _gelu(rows, cols, out, so, x, sx):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, v = out[r * so : r * so + cols], x[r * sx : r * sx + cols]
        for j in range(cols):
            tail = normal_tail(abs(v[j]), exp(f32(-0.5) * v[j] * v[j]))
            o[j] = v[j] * (f32(1) - tail if v[j] > 0 else tail)


@compiled
def _gelu_grad(rows, cols, out, so, dy, sd, x, sx, norm):  # type: ignore[no-untyped-def]
    for r in range(rows):
        o, d, v = out[r * so : r * so + cols], dy[r * sd : r * sd + cols], x[r * sx : r * sx + cols]
        for j in range(cols):
            density = exp(f32(-0.5) * v[j] * v[j])
            tail = normal_tail(abs(v[j]), density)
            o[j] = d[j] * ((f32(1) - tail if v[j] > 0 else tail) + v[j] * density * norm)

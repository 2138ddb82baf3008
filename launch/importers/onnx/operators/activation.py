"""Functions of one array: rectifiers, sigmoids, the softmax, dropout."""

from __future__ import annotations

from math import prod

from castile.launch.importers.onnx import shaping
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.operators.arithmetic import scaled
from castile.launch.importers.onnx.values import Unsupported, Value
from castile.planner.op import Init, Tensor

PLAIN = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Softplus": "softplus", "Sin": "sin", "Cos": "cos"}


@handles(*PLAIN)
def plain(c: Call) -> Tensor:
    return getattr(c.g, PLAIN[c.op])(c.name, c.tensor(0))


@handles("LeakyRelu")
def leaky(c: Call) -> Tensor:
    return c.g.leaky_relu(c.name, c.tensor(0), below=c.get("alpha", 0.01))


@handles("Elu")
def elu(c: Call) -> Tensor:
    return c.g.elu(c.name, c.tensor(0), alpha=c.get("alpha", 1.0))


@handles("Celu")
def celu(c: Call) -> Tensor:
    alpha = c.get("alpha", 1.0)
    y = c.g.elu(c.inner("elu") if alpha != 1 else c.name, scaled(c, c.inner("in"), c.tensor(0), 1 / alpha), alpha=1.0)
    return scaled(c, c.name, y, alpha)


@handles("Selu")
def selu(c: Call) -> Tensor:
    alpha, gamma = c.get("alpha", 1.67326319217681884765625), c.get("gamma", 1.05070102214813232421875)
    return scaled(c, c.name, c.g.elu(c.inner("elu"), c.tensor(0), alpha=alpha), gamma)


@handles("PRelu")
def prelu(c: Call) -> Tensor:
    x = c.tensor(0)
    given = c.shape(1)
    # before version 7 a slope of one dim was of channels
    shape = (*given, *(1 for _ in x.shape[2:])) if c.version < 7 and len(given) == 1 else given
    axes = " ".join(f"d{n}" for n in range(len(shape)))
    slope = c.weight(1, axes, Init("uniform", 0.25), lambda w: w.reshaped(shape))
    below = c.g.mul(c.inner("below"), c.g.clamp(c.inner("negative"), x, high=0.0), slope)
    return c.g.add(c.name, c.g.relu(c.inner("above"), x), below)


@handles("Softsign")
def softsign(c: Call) -> Tensor:
    x = c.tensor(0)
    return c.g.div(c.name, x, c.g.shift(c.inner("shift"), c.g.abs(c.inner("abs"), x), amount=1.0))


@handles("HardSigmoid")
def hard_sigmoid(c: Call) -> Tensor:
    return _hard(c, c.name, c.get("alpha", 0.2), c.get("beta", 0.5))


@handles("HardSwish")
def hard_swish(c: Call) -> Tensor:
    return c.g.mul(c.name, c.tensor(0), _hard(c, c.inner("gate"), 1 / 6, 0.5))


def _hard(c: Call, name: str, alpha: float, beta: float) -> Tensor:
    line = c.g.shift(c.inner("line"), scaled(c, c.inner("slope"), c.tensor(0), alpha), amount=beta)
    return c.g.clamp(name, line, low=0.0, high=1.0)


@handles("Gelu")
def gelu(c: Call) -> Tensor:
    return c.g.gelu(c.name, c.tensor(0), approximate=c.get("approximate", b"none").decode())


@handles("Swish")
def swish(c: Call) -> Tensor:
    x, alpha = c.tensor(0), c.get("alpha", 1.0)
    if alpha == 1:
        return c.g.silu(c.name, x)
    return c.g.mul(c.name, x, c.g.sigmoid(c.inner("gate"), scaled(c, c.inner("times"), x, alpha)))


@handles("Softmax", "LogSoftmax")
def softmax(c: Call) -> Tensor:
    layer, x = "softmax" if c.op == "Softmax" else "log_softmax", c.tensor(0)
    dim = c.get("axis", -1 if c.version >= 13 else 1) % max(len(x.shape), 1)
    if c.version < 13 and dim != len(x.shape) - 1:
        # over all dims from there on
        flat = shaping.reshaped(c.g, c.inner("flat"), x, (*x.shape[:dim], prod(x.shape[dim:])))
        return shaping.reshaped(c.g, c.name, getattr(c.g, layer)(c.inner("rows"), flat), x.shape)
    last = len(x.shape) - 1
    if dim == last:
        return getattr(c.g, layer)(c.name, x)
    dims = (*(n for n in range(last + 1) if n != dim), dim)
    rows = getattr(c.g, layer)(c.inner("rows"), shaping.permuted(c.g, c.inner("last"), x, dims))
    return shaping.permuted(c.g, c.name, rows, tuple(dims.index(n) for n in range(last + 1)))


@handles("Dropout")
def dropout(c: Call) -> tuple[Value, ...]:
    if c.results > 1 and c.net.training:
        raise Unsupported("whose mask is used")
    rate = float(c.known(1, c.get("ratio", 0.5)))
    # a file says whether it was exported for training; here the user does
    c.known(2), c.get("seed"), c.get("is_test")
    x = c.value(0)
    if not c.net.training or not rate or not isinstance(x, Tensor):
        return (x,)
    return (c.g.dropout(c.name, x, rate=rate),)

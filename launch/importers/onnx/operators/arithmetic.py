"""Arithmetic on each element: of two arrays, of an array and a number, of several."""

from __future__ import annotations

from dataclasses import replace
from math import isclose

import numpy as np

from castile.launch.importers.onnx import pieces
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.operators.random import shared
from castile.launch.importers.onnx.values import Erf, Known, Left, Unsupported
from castile.planner.op import Tensor

UNARY = {
    "Neg": "neg", "Abs": "abs", "Sqrt": "sqrt", "Exp": "exp", "Log": "log", "Reciprocal": "reciprocal", "Sign": "sign",
}  # fmt: skip


@handles(*UNARY)
def unary(c: Call) -> Tensor:
    return getattr(c.g, UNARY[c.op])(c.name, c.floating(0))


def scaled(c: Call, name: str, x: Tensor, factor: float) -> Tensor:
    """x times a number; together with a number that x was multiplied by before."""
    x, before = pieces.without_factor(c.g, x)
    factor *= before
    return x if isclose(factor, 1.0, rel_tol=1e-6) else c.g.scale(name, x, factor=factor)


def number(c: Call, at: int, beside: int) -> float | None:
    """The one number that an input is, or that is everywhere in it, where the other one has at least as many dims, and
    as long ones; None where it is no such."""
    return number_within(c, at, c.shape(beside))


def number_within(c: Call, at: int, shape: tuple[int, ...]) -> float | None:
    """The one number that an input is, or that is everywhere in it, where its dims are no more than a shape's, nor
    longer; None where it is no such."""
    found = c.value(at)
    if isinstance(found, Known) and found.size and found.is_filler and np.broadcast_shapes(found.shape, shape) == shape:
        return float(found.array.flat[0])
    return c.scalar(at) if len(found.shape) <= len(shape) else None


def paired(c: Call, layer: str, name: str, x: Tensor, y: Tensor) -> Tensor:
    """What a layer makes of two arrays."""
    return getattr(c.g, layer)(name, *unrepeated(c, x, y))


def unrepeated(c: Call, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Two arrays that meet; one that was repeated up to the other's shape is taken as it was before."""
    x = _before(c, x, y)
    return x, _before(c, y, x)


def _before(c: Call, x: Tensor, other: Tensor) -> Tensor:
    node = pieces.maker(c.g, x, "expand")
    before = pieces.operand(c.g, node, 0) if node else x
    whole, less = (np.broadcast_shapes(one.shape, other.shape) for one in (x, before))
    return before if less == whole else x


def shifted(c: Call, x: Tensor, amount: float) -> Tensor:
    """x and a number."""
    return c.g.shift(c.name, x, amount=amount) if amount else x


@handles("Add")
def add(c: Call) -> Tensor | Erf:
    c.get("broadcast")
    for x, other in ((0, 1), (1, 0)):
        value, amount = c.value(x), c.scalar(other)
        if isinstance(value, Known) and not c.net.is_trained(value):
            continue
        if isinstance(value, Erf) and amount is not None:
            return replace(value, plus=value.plus + amount)
        if (amount := number(c, other, x)) is not None:
            return shifted(c, c.floating(x), amount)
        more = c.value(other)
        whole = pieces.with_bias(c, c.floating(x), more) or pieces.layer_norm(c, c.floating(x), more)
        if whole is not None:
            return whole
    return paired(c, "add", c.name, c.floating(0), c.floating(1))


@handles("Sub")
def sub(c: Call) -> Tensor:
    c.get("broadcast")
    if (amount := number(c, 1, 0)) is not None:
        return shifted(c, c.floating(0), -amount)
    if (amount := number(c, 0, 1)) is not None:
        turned = c.g.neg(c.inner("neg"), c.floating(1))
        return c.g.shift(c.name, turned, amount=amount)
    return paired(c, "sub", c.name, c.floating(0), c.floating(1))


@handles("Mul")
def mul(c: Call) -> Tensor | Erf:
    c.get("broadcast")
    for x, other in ((0, 1), (1, 0)):
        value, more, factor = c.value(x), c.value(other), c.scalar(other)
        if isinstance(value, Known) and not c.net.is_trained(value):
            continue
        if isinstance(value, Erf) and factor is not None:
            return replace(value, times=value.times * factor, plus=value.plus * factor)
        if (factor := number(c, other, x)) is not None:
            return scaled(c, c.name, c.floating(x), factor)
        whole = None
        if isinstance(value, Tensor) and isinstance(more, Erf):
            whole = pieces.gelu(c, value, more)
        elif isinstance(value, Tensor) and isinstance(more, Tensor):
            whole = pieces.silu(c, value, more)
        elif isinstance(value, Tensor):
            whole = pieces.rms_norm(c, value, more)
        if whole is not None:
            return whole
    return paired(c, "mul", c.name, c.floating(0), c.floating(1))


@handles("Div")
def div(c: Call) -> Tensor | Known:
    c.get("broadcast")
    if isinstance(left := c.value(0), Left):
        return shared(c, left)
    if c.kind(0).kind in "iu":
        raise Unsupported("of whole numbers")
    if by := number(c, 1, 0):
        return scaled(c, c.name, c.floating(0), 1 / by)
    if (factor := number(c, 0, 1)) is not None:
        return scaled(c, c.name, c.g.reciprocal(c.inner("reciprocal"), c.floating(1)), factor)
    return paired(c, "div", c.name, c.floating(0), c.floating(1))


@handles("Erf")
def erf(c: Call) -> Erf:
    return Erf(c.floating(0))


@handles("Pow")
def power(c: Call) -> Tensor:
    exponent, x = c.scalar(1), c.floating(0)
    if exponent is None:
        raise Unsupported("with an exponent that is no number")
    if exponent == 1:
        return x
    if exponent == 0.5:
        return c.g.sqrt(c.name, x)
    if exponent == -0.5:
        return c.g.rsqrt(c.name, x)
    if exponent in (2, 3, 4):
        square = c.g.square(c.name if exponent == 2 else c.inner("square"), x)
        return square if exponent == 2 else c.g.mul(c.name, square, x if exponent == 3 else square)
    if exponent == int(exponent):
        raise Unsupported(f"with the exponent {exponent:g}")
    # of a negative number there is no such power
    return c.g.exp(c.name, scaled(c, c.inner("times"), c.g.log(c.inner("log"), x), exponent))


def several(c: Call, layer: str, is_last: bool = True) -> Tensor:
    """One after another, from the first; is_last says whether that is what the node gives."""
    found = c.floating(0)
    for n in range(1, len(c.args)):
        name = c.name if is_last and n == len(c.args) - 1 else c.inner(f"{layer}{n}")
        found = paired(c, layer, name, found, c.floating(n))
    return found


@handles("Sum")
def total(c: Call) -> Tensor:
    return several(c, "add")


@handles("Mean")
def mean(c: Call) -> Tensor:
    if len(c.args) == 1:
        return c.floating(0)
    return c.g.scale(c.name, several(c, "add", is_last=False), factor=1 / len(c.args))


@handles("Max", "Min")
def extreme(c: Call) -> Tensor:
    if len(c.args) == 2:
        for x, other in ((0, 1), (1, 0)):
            bound = number(c, other, x) if isinstance(c.value(x), Tensor) or c.net.is_trained(c.value(x)) else None
            if bound is not None:
                low, high = (bound, np.inf) if c.op == "Max" else (-np.inf, bound)
                return clamped(c, c.floating(x), low, high)
    return several(c, "maximum" if c.op == "Max" else "minimum")


def clamped(c: Call, x: Tensor, low: float, high: float) -> Tensor:
    """x, but no less than `low` and no more than `high`."""
    if low == 0 and high == np.inf:
        return c.g.relu(c.name, x)
    return x if (low, high) == (-np.inf, np.inf) else c.g.clamp(c.name, x, low=low, high=high)


@handles("Clip")
def clip(c: Call) -> Tensor:
    bounds = []
    for n, (name, default) in enumerate((("min", -np.inf), ("max", np.inf)), start=1):
        given = c.known(n)
        bounds.append(float(c.get(name, default) if given is None else given))
    return clamped(c, c.floating(0), min(bounds), bounds[1])

"""Comparisons, what holds of several, and of two arrays the one that a mask says.

What holds is 1, what does not 0. A comparison is one node with what is made of it where that is one of two numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from castile.launch.importers.onnx import pieces, shaping
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.operators import handles
from castile.launch.importers.onnx.operators.arithmetic import number, number_within, paired, unrepeated
from castile.launch.importers.onnx.operators.layout import stretched
from castile.launch.importers.onnx.operators.random import below
from castile.launch.importers.onnx.values import Drawn, Known, Left, Unsupported, known
from castile.planner.op import Tensor, find

SIGNS = {"Greater": ">", "GreaterOrEqual": ">=", "Less": "<", "LessOrEqual": "<=", "Equal": "=="}
TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "==": "=="}


@handles(*SIGNS)
def compare(c: Call) -> Tensor | Left:
    c.get("axis"), c.get("broadcast")
    sign, drawn = SIGNS[c.op], c.value(0)
    if isinstance(drawn, Drawn) and sign in ("<", "<=") and (share := c.scalar(1)) is not None:
        return below(c, drawn, share)
    if (than := number(c, 1, 0)) is not None:
        return c.g.compare(c.name, c.floating(0), sign, than)
    if (than := number(c, 0, 1)) is not None:
        return c.g.compare(c.name, c.floating(1), TURNED[sign], than)
    x, other = unrepeated(c, c.floating(0), c.floating(1))
    return c.g.compare(c.name, x, sign, other)


@handles("IsNaN")
def is_nan(c: Call) -> Tensor:
    x = c.floating(0)
    return c.g.apply(find("compare")("==", 0.0, 0.0, 1.0), c.name, x, x)


@handles("IsInf")
def is_infinite(c: Call) -> Tensor:
    if not c.get("detect_negative", 1) or not c.get("detect_positive", 1):
        raise Unsupported("of one sign")
    return c.g.compare(c.name, c.g.abs(c.inner("abs"), c.floating(0)), "==", np.inf)


@handles("Not")
def negated(c: Call) -> Tensor:
    return chosen(c, c.name, c.floating(0), 0.0, 1.0)


def chosen(c: Call, name: str, mask: Tensor, yes: float, no: float) -> Tensor:
    """A number where a mask holds, another elsewhere; together with the comparison that the mask is."""
    node = pieces.maker(c.g, mask, "compare")
    op: Any = node.op if node else None
    if node is None or (op.yes, op.no) not in ((1.0, 0.0), (0.0, 1.0)):
        return c.g.apply(find("compare")(">", 0.0, yes, no), name, mask)
    if op.no == 1.0:
        yes, no = no, yes
    return c.g.apply(replace(op, yes=yes, no=no), name, *(c.g.tensors[one] for one in node.inputs))


@handles("And", "Or")
def both(c: Call) -> Tensor:
    c.get("axis"), c.get("broadcast")
    return paired(c, "minimum" if c.op == "And" else "maximum", c.name, c.floating(0), c.floating(1))


@handles("Xor")
def one_of(c: Call) -> Tensor:
    c.get("axis"), c.get("broadcast")
    x, other = unrepeated(c, c.floating(0), c.floating(1))
    return c.g.apply(find("compare")("==", 0.0, 0.0, 1.0), c.name, x, other)


@handles("OneHot")
def one_hot(c: Call) -> Tensor:
    """A number at the place that a whole number tells, from the end where it is below zero, and another elsewhere."""
    depth, (no, yes), last = int(c.known(1).reshape(())), c.known(2), len(c.shape(0))
    if c.get("axis", -1) not in (-1, last):
        raise Unsupported("along another dim than the last")
    return placed(c, c.name, c.floating(0), depth, float(yes), float(no))


def placed(c: Call, name: str, x: Tensor, depth: int, yes: float = 1.0, no: float = 0.0) -> Tensor:
    """Behind each place [...] one number for each of so many [..., depth]: `yes` at that place, and `no` elsewhere."""
    x = shaping.reshaped(c.g, c.inner("apart"), x, (*x.shape, 1))
    below, from_end = c.g.compare(c.inner("below"), x, "<"), c.g.shift(c.inner("end"), x, amount=depth)
    x = c.g.where(c.inner("place"), below, from_end, x)
    places = c.net.operand(known(f"{name}.depth", np.arange(depth, dtype=np.float32)))
    return c.g.apply(find("compare")("==", 0.0, yes, no), name, x, places)


@handles("Where")
def where(c: Call) -> Tensor:
    shape = np.broadcast_shapes(*(c.shape(n) for n in range(3)))
    found = _by_known(c) if isinstance(c.value(0), Known) else _by_mask(c, shape)
    return stretched(c, c.inner("stretched"), found, shape)


def _by_mask(c: Call, shape: tuple[int, ...]) -> Tensor:
    """By a mask that depends on samples."""
    mask, (yes, no) = c.floating(0), (number_within(c, n, shape) for n in (1, 2))
    if yes is not None and no is not None:
        return chosen(c, c.name, mask, yes, no)
    if yes is not None:
        whole = _unseen(c, mask, c.floating(2)) if yes == 0 else None
        return whole or c.g.masked(c.name, c.floating(2), chosen(c, c.inner("others"), mask, 0.0, 1.0), other=yes)
    if no is not None:
        return c.g.masked(c.name, c.floating(1), mask, other=no)
    return c.g.where(c.name, mask, c.floating(1), c.floating(2))


def _unseen(c: Call, mask: Tensor, x: Tensor) -> Tensor | None:
    """A softmax whose rows are zeros where they are no numbers, as one that is so by itself."""
    is_nan, softmax = pieces.maker(c.g, mask, "compare"), pieces.maker(c.g, x, "softmax")
    if is_nan is None or softmax is None or is_nan.inputs != (x.name, x.name) or is_nan.op.no != 1:  # type: ignore[attr-defined]
        return None
    return c.g.safe_softmax(c.name, pieces.operand(c.g, softmax, 0))


def _by_known(c: Call) -> Tensor:
    """By a mask that is known."""
    mask, parts = c.known(0).astype(bool), []
    for n, there in ((1, mask), (2, ~mask)):
        value = c.value(n)
        if isinstance(value, Known) and not c.net.is_trained(value):
            parts.append(c.net.operand(known(f"{c.name}.other{n}", np.where(there, value.array, 0).astype(np.float32))))
        else:
            kept = known(f"{c.name}.mask{n}", there.astype(np.float32))
            parts.append(paired(c, "masked", c.inner(f"kept{n}"), c.floating(n), c.net.operand(kept)))
    return paired(c, "add", c.name, *parts)

"""Attention that files write as a product, a softmax and a product, found by looking back from the last.

It does not know masks but those that hide what comes later.
"""

from __future__ import annotations

from math import isclose, sqrt

import numpy as np

from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.pieces import maker, operand, without_factor
from castile.planner.axes import parse
from castile.planner.graph import Graph, Node
from castile.planner.op import Tensor

# What is added to scores that are not to be seen is no more than this.
HIDDEN = -1e4
APART = "b s (h d) -> b h s d"


def attention(c: Call, weights: Tensor, values: Tensor) -> Tensor | None:
    """Of weights [b, h, s, t] and values [b, h, t, d] the attention whose weights they are, as one operator."""
    softmax = maker(c.g, weights, "softmax")
    if softmax is None or len(weights.shape) != 4 or len(values.shape) != 4:
        return None
    scores, factor = without_factor(c.g, operand(c.g, softmax, 0))
    scores, is_causal = _unmasked(c, scores)
    scores, more = without_factor(c.g, scores)
    product = maker(c.g, scores, "contract")
    if product is None or product.op.text != "d e a c, d e c b -> d e a b" or (is_causal and factor != 1):  # type: ignore[attr-defined]
        return None
    q, of_q = _joined(c, operand(c.g, product, 0), "bhsd")
    keys, of_keys = _joined(c, operand(c.g, product, 1), "bhds")
    v, of_values = _joined(c, values, "bhsd")
    if keys.shape != v.shape or q.shape[0] != v.shape[0] or weights.shape[1] != values.shape[1]:
        return None
    heads, width = values.shape[1], values.shape[3]
    scale = factor * more * of_q * of_keys * sqrt(width)
    q = q if isclose(scale, 1, rel_tol=1e-5) else c.g.scale(c.inner("scaled"), q, factor=scale)
    y = c.g.attention(c.inner("heads"), q, keys, v, heads=heads, causal=is_causal)
    y = y if of_values == 1 else c.g.scale(c.inner("values"), y, factor=of_values)
    return c.g.transpose(c.name, y, APART, h=heads)


def _unmasked(c: Call, scores: Tensor) -> tuple[Tensor, bool]:
    """The scores before what comes later is hidden, and whether it is."""
    node = maker(c.g, scores, "add")
    if node is None:
        return scores, False
    length = scores.shape[-1]
    if scores.shape[-2] != length:
        return scores, False
    seen = np.tri(length, dtype=bool)
    for number in (0, 1):
        before, added = operand(c.g, node, 1 - number), _numbers(c, node, number)
        if added is None or added[..., seen].any() or not (added[..., ~seen] <= HIDDEN).all():
            continue
        kept = maker(c.g, before, "masked")
        if kept is None:
            return before, True
        mask = _numbers(c, kept, 1)
        if mask is not None and (mask[..., seen] > 0).all():
            return operand(c.g, kept, 0), True
    return scores, False


def _numbers(c: Call, node: Node, number: int) -> np.ndarray | None:
    """The known numbers that a node takes, as long as what it gives; None where they are not known."""
    name = node.inputs[number]
    if name not in c.g.states:
        return None
    return np.broadcast_to(c.net.sources[name].array, c.g.tensors[node.name].shape)


def _joined(c: Call, x: Tensor, places: str) -> tuple[Tensor, float]:
    """x, whose dims are the places b, h, s and d in some order, as [b, s, h*d], and a factor that it is times of."""
    x, factor = without_factor(c.g, x)
    node = maker(c.g, x, "transpose")
    if node is not None and (dims := _dims(node)) is not None:
        before = "".join(places[dims.index(n)] for n in range(len(dims)))
        return _scaled(_joined(c, operand(c.g, node, 0), before), factor)
    node = maker(c.g, x, "reshape")
    source = operand(c.g, node, 0) if node else x
    if places == "bshd" and source.shape == (*x.shape[:2], x.shape[2] * x.shape[3]):
        return _scaled(without_factor(c.g, source), factor)
    return c.g.transpose(c.inner("joined"), x, f"{' '.join(places)} -> b s (h d)"), factor


def _scaled(found: tuple[Tensor, float], factor: float) -> tuple[Tensor, float]:
    return found[0], found[1] * factor


def _dims(node: Node) -> list[int] | None:
    """The order in which a transposition takes dims; None for one that divides or joins them."""
    line = parse(node.op.text)  # type: ignore[attr-defined]
    (x,), (y,) = line.operands, line.results
    return [x.axes.index(axis) for axis in y.axes] if all(len(dim) == 1 for dim in x.dims + y.dims) else None


def together(g: Graph, x: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """What x [b, s, h, d] was before attention took its heads apart, where that has the shape."""
    turned = maker(g, x, "transpose")
    apart = maker(g, operand(g, turned, 0), "transpose") if turned and _dims(turned) == [0, 2, 1, 3] else None
    if apart is None or apart.op.text != APART:  # type: ignore[attr-defined]
        return None
    found = operand(g, apart, 0)
    return found if found.shape == shape else None

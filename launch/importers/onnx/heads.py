"""Attention that files write as a product, a softmax and a product, found by looking back from the last.

It does not know masks but those that hide what comes later.
"""

from __future__ import annotations

from math import isclose, sqrt

import numpy as np

from castile.launch.importers.onnx import shaping
from castile.launch.importers.onnx.network import Call
from castile.launch.importers.onnx.pieces import maker, operand, without_factor
from castile.launch.importers.onnx.views import made, view, whole
from castile.planner.graph import Node
from castile.planner.op import Tensor

# What is added to scores that are not to be seen is no more than this.
HIDDEN = -1e4
APART = "b s (h d) -> b h s d"


def attention(c: Call, weights: Tensor, values: Tensor) -> Tensor | None:
    """Of weights [b, h, s, t] and values [b, h, t, d] the attention whose weights they are, as one operator."""
    softmax = maker(c.g, weights, "softmax", "safe_softmax")
    if softmax is None or len(weights.shape) != 4 or len(values.shape) != 4:
        return None
    scores, factor = without_factor(c.g, operand(c.g, softmax, 0))
    scores, is_causal = _unmasked(c, scores)
    scores, more = without_factor(c.g, scores)
    product = maker(c.g, scores, "contract")
    if product is None or product.op.text != "d e a c, d e c b -> d e a b" or (is_causal and factor != 1):  # type: ignore[attr-defined]
        return None
    q, of_q = _joined(c, operand(c.g, product, 0), "bhsd")
    heads, width = values.shape[1], values.shape[3]
    keys, of_keys, groups = _shared(c, operand(c.g, product, 1), "bhds")
    v, of_values, groups_of_v = _shared(c, values, "bhsd")
    if groups != groups_of_v:
        (keys, of_keys), (v, of_values) = _joined(c, operand(c.g, product, 1), "bhds"), _joined(c, values, "bhsd")
        groups = heads
    if keys.shape != v.shape or q.shape[0] != v.shape[0] or weights.shape[1] != heads:
        return None
    scale = factor * more * of_q * of_keys * sqrt(width)
    q = q if isclose(scale, 1, rel_tol=1e-5) else c.g.scale(c.inner("scaled"), q, factor=scale)
    y = c.g.attention(c.inner("heads"), q, keys, v, heads=heads, causal=is_causal, kv_heads=groups)
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


def _shared(c: Call, x: Tensor, places: str) -> tuple[Tensor, float, int]:
    """Keys or values [b, s, groups*d] before each head of a group has its own, a factor, and how many groups."""
    of = view(c.g, x, scales=True)
    node = maker(c.g, of.source, "expand")
    turned, heads = of.permuted(tuple(places.index(place) for place in "bhsd")), x.shape[places.index("h")]
    if node is not None and len(of.source.shape) == 5:
        before = operand(c.g, node, 0)
        b, groups, _, s, d = of.source.shape
        repeated = whole(of.source).reshaped((b, heads, s, d))
        if before.shape == (b, groups, 1, s, d) and repeated is not None and turned.dims == repeated.dims:
            own = shaping.reshaped(c.g, c.inner("shared"), before, (b, groups, s, d))
            found, factor = _joined(c, own, "bhsd")
            return found, of.factor * factor, groups
    return *_joined(c, x, places), heads


def _joined(c: Call, x: Tensor, places: str) -> tuple[Tensor, float]:
    """x, whose dims are the places b, h, s and d in some order, as [b, s, h*d], and a factor that it is times of."""
    of = view(c.g, x, scales=True)
    turned = of.permuted(tuple(places.index(place) for place in "bshd"))
    b, s, h, d = turned.shape
    joined = turned.reshaped((b, s, h * d))
    found = made(c.g, c.inner("joined"), joined) if joined is not None else None
    if found is not None:
        return found, of.factor
    return c.g.transpose(c.inner("joined"), x, f"{' '.join(places)} -> b s (h d)"), 1.0

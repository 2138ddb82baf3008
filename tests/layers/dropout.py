"""Layers of drawn graphs: dropout."""

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer(exact=True)
def layer_dropout(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.dropout(c.name("dropout"), x, rate=0.5)

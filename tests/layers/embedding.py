"""Layers of drawn graphs: embedding."""

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer(exact=True)
def layer_embedding(c: Canvas) -> Tensor | None:
    rows = c.integer(2, 5)
    tokens = c.tokens(rows, c.integer(1, 4))
    return c.graph.embedding(c.name("embedding"), tokens, rows=rows, features=c.integer(1, 6))

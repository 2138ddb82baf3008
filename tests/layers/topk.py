"""Layers of drawn graphs: the largest elements."""

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer()
def layer_topk(c: Canvas) -> Tensor | None:
    """Of a linear layer, whose shift tells apart what would be equal but for rounding."""
    x = c.any()
    if x is None or len(x.shape) < 2:
        return None
    wide = c.graph.linear(c.name("apart"), x, features=c.integer(1, 5))
    return c.graph.topk(c.name("topk"), wide, c.integer(1, wide.shape[-1]))

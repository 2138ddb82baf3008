"""Layers of drawn graphs: pooling."""

from castile.planner.op import Tensor
from tests.layers import Canvas, layer, window


@layer(exact=True)
def layer_max_pool2d(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) == 4)
    return None if x is None else c.graph.max_pool2d(c.name("pool"), x, *window(c, x))

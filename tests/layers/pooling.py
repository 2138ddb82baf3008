"""Layers of drawn graphs: pooling."""

from hypothesis import strategies as st

from castile.planner.op import Tensor
from tests.layers import Canvas, layer, window


@layer(exact=True)
def layer_max_pool2d(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) == 4)
    return None if x is None else c.graph.max_pool2d(c.name("pool"), x, *window(c, x))


@layer()
def layer_avg_pool2d(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) == 4)
    return None if x is None else c.graph.avg_pool2d(c.name("pool"), x, *window(c, x), padded=c.draw(st.booleans()))


@layer()
def layer_global_pool(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) >= 2)
    return None if x is None else c.graph.global_pool(c.name("mean"), x)

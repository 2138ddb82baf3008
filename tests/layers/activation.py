"""Layers of drawn graphs: activation."""

from hypothesis import strategies as st

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer(exact=True)
def layer_relu(c: Canvas) -> Tensor | None:
    x = c.any()
    return None if x is None else c.graph.relu(c.name("relu"), x)


@layer()
def layer_gelu(c: Canvas) -> Tensor | None:
    x = c.any()
    if x is None:
        return None
    return c.graph.gelu(c.name("gelu"), x, approximate=c.draw(st.sampled_from(("tanh", "none"))))

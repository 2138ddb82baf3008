"""Layers of drawn graphs: convolution."""

from hypothesis import strategies as st

from castile.planner.op import Tensor
from tests.layers import Canvas, layer, window


@layer(exact=True)
def layer_conv2d(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) == 4)
    if x is None:
        return None
    kernel, stride, padding = window(c, x)
    channels, bias = c.integer(1, 4), c.draw(st.booleans())
    return c.graph.conv2d(c.name("conv"), x, channels, kernel, stride, padding, bias)

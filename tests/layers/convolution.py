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
    groups = _groups(c, x.shape[1])
    channels, bias = groups * c.integer(1, max(1, 4 // groups)), c.draw(st.booleans())
    return c.graph.conv2d(c.name("conv"), x, channels, kernel, stride, padding, bias, groups=groups)


@layer(exact=True)
def layer_conv1d(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) == 3)
    if x is None:
        return None
    groups, kernel, gap = _groups(c, x.shape[1]), c.integer(1, min(3, x.shape[2])), c.integer(1, 2)
    causal = c.draw(st.booleans()) or (kernel - 1) * gap + 1 > x.shape[2]
    how = {"stride": c.integer(1, 3), "dilation": gap, "groups": groups, "causal": causal}
    channels = groups * c.integer(1, max(1, 4 // groups))
    return c.graph.conv1d(c.name("conv"), x, channels, kernel, bias=c.draw(st.booleans()), **how)


@layer(exact=True)
def layer_conv_transpose2d(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) == 4)
    if x is None:
        return None
    groups, kernel = _groups(c, x.shape[1]), (c.integer(1, 3), c.integer(1, 3))
    stride = c.integer(1, 3), c.integer(1, 3)
    extra = c.integer(0, stride[0] - 1), c.integer(0, stride[1] - 1)
    channels = groups * c.integer(1, max(1, 3 // groups))
    bias = c.draw(st.booleans())
    return c.graph.conv_transpose2d(c.name("up"), x, channels, kernel, stride, 0, bias, groups=groups, extra=extra)


def _groups(c: Canvas, channels: int) -> int:
    return c.draw(st.sampled_from([n for n in range(1, channels + 1) if channels % n == 0]))

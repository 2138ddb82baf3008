"""Layers of drawn graphs: normalization."""

from hypothesis import strategies as st

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer()
def layer_layer_norm(c: Canvas) -> Tensor | None:
    # of a width below 3 it tells little more than signs
    x = c.choose(lambda t: t.shape[-1] > 2)
    return None if x is None else c.graph.layer_norm(c.name("norm"), x)


@layer()
def layer_rms_norm(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) >= 1)
    return None if x is None else c.graph.rms_norm(c.name("norm"), x, eps=0.1)


@layer()
def layer_group_norm(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) >= 2)
    if x is None:
        return None
    groups = c.draw(st.sampled_from([n for n in range(1, x.shape[1] + 1) if x.shape[1] % n == 0]))
    # of a group of few elements it tells little more than signs, unless eps is large
    return c.graph.group_norm(c.name("norm"), x, groups, eps=1.0)

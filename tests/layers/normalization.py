"""Layers of drawn graphs: normalization."""

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer()
def layer_layer_norm(c: Canvas) -> Tensor | None:
    # of a width below 3 it tells little more than signs
    x = c.choose(lambda t: t.shape[-1] > 2)
    return None if x is None else c.graph.layer_norm(c.name("norm"), x)

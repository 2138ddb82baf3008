"""Layers of drawn graphs: batch normalisation."""

from math import prod

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer()
def layer_batch_norm(c: Canvas) -> Tensor | None:
    # of few numbers it tells little more than signs, unless eps is large
    x = c.choose(lambda t: len(t.shape) >= 2 and prod(t.shape) > t.shape[1])
    return None if x is None else c.graph.batch_norm(c.name("norm"), x, momentum=0.3, eps=1.0)

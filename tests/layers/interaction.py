"""Layers of drawn graphs: products of pairs."""

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer(exact=True)
def layer_pair_dots(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) == 3 and t.shape[1] > 1)
    return x and c.graph.pair_dots(c.name("pairs"), x)

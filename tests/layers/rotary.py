"""Layers of drawn graphs: rotary position embeddings."""

from hypothesis import strategies as st

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer()
def layer_rotary(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) >= 3 and t.shape[-1] % 2 == 0)
    if x is None:
        # an even width is soon made
        x = c.choose(lambda t: len(t.shape) >= 3)
        if x is None:
            return None
        x = c.graph.linear(c.name("linear"), x, features=4)
    heads = c.draw(st.sampled_from([n for n in range(1, x.shape[-1] + 1) if x.shape[-1] % (2 * n) == 0]))
    return c.graph.rotary(c.name("rotary"), x, heads, base=10.0, interleaved=c.draw(st.booleans()))

"""Layers of drawn graphs: a cross-entropy over blocks of classes."""

from hypothesis import strategies as st

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer()
def layer_split_cross_entropy(c: Canvas) -> Tensor | None:
    """Added to its logits, so that the result is one to go on with."""
    x = c.choose(lambda t: len(t.shape) >= 2 and t.shape[0] == c.batch)
    if x is None:
        return None
    labels = c.tokens(x.shape[-1], *x.shape[1:-1])
    blocks = c.draw(st.integers(1, x.shape[-1]))
    loss = c.graph.split_cross_entropy(c.name("entropy"), x, labels, blocks=blocks)
    return c.graph.add(c.name("both"), x, loss)

"""Layers of drawn graphs: bags of embeddings."""

from hypothesis import strategies as st

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer()
def layer_embedding_bag(c: Canvas) -> Tensor | None:
    rows = c.integer(2, 5)
    # rows of what was flattened may be more than samples
    flat = c.choose(lambda t: len(t.shape) == 2 and t.shape[0] == c.batch and t.shape[1] <= 6)
    tokens = c.tokens(rows, flat.shape[1] if flat else c.integer(1, 4))
    weights, mean = flat if c.draw(st.booleans()) else None, c.draw(st.booleans())
    return c.graph.embedding_bag(c.name("bag"), tokens, rows, c.integer(1, 6), weights, mean)

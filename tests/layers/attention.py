"""Layers of drawn graphs: attention."""

from hypothesis import strategies as st

from castile.planner.op import Tensor
from tests.layers import Canvas, layer


@layer()
def layer_attention(c: Canvas) -> Tensor | None:
    q = c.choose(lambda t: len(t.shape) == 3)
    if q is None:
        return None
    keys = [t for t in c.pool if len(t.shape) == 3 and (t.shape[0], t.shape[2]) == (q.shape[0], q.shape[2])]
    key = c.draw(st.sampled_from(keys))
    value = c.draw(st.sampled_from([t for t in keys if t.shape == key.shape]))
    heads = c.draw(st.sampled_from([n for n in range(1, q.shape[2] + 1) if q.shape[2] % n == 0]))
    causal = c.draw(st.booleans())
    shared = c.draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    if shared > 1 and c.draw(st.booleans()):
        width = q.shape[2] // heads * (heads // shared)
        key, value = (c.graph.linear(c.name("few"), t, features=width) for t in (key, value))
        return c.graph.attention(c.name("attention"), q, key, value, heads, causal, kv_heads=heads // shared)
    return c.graph.attention(c.name("attention"), q, key, value, heads=heads, causal=causal)

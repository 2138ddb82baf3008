"""Layers of drawn graphs: arrays."""

from hypothesis import strategies as st

from castile.planner.op import Tensor
from castile.planner.ops.linear import Linear
from tests.layers import Canvas, layer

FLAT = {2: (), 3: ("a b c -> a (b c)", "a b c -> (a b) c"), 4: ("a b c d -> a (b c d)", "a b c d -> a b (c d)")}


@layer(exact=True)
def layer_linear(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) >= 2)
    if x is None:
        return None
    shared = [p for p in c.graph.params if len(p.shape) == 2 and p.shape[1] == x.shape[-1]]
    if shared and c.draw(st.booleans()):
        return c.graph.apply(Linear(), c.name("shared"), x, c.draw(st.sampled_from(shared)))
    return c.graph.linear(c.name("linear"), x, features=c.integer(1, 5), bias=c.draw(st.booleans()))


@layer(exact=True)
def layer_reshape(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) in (2, 3, 4))
    if x is None:
        return None
    texts = list(FLAT[len(x.shape)])
    sizes: dict[str, dict[str, int]] = {}
    if len(x.shape) < 4:
        inner = [n for n in range(1, x.shape[-1] + 1) if x.shape[-1] % n == 0]
        letters = "a b" if len(x.shape) == 3 else "a"
        texts.append(f"{letters} (e f) -> {letters} e f")
        sizes[texts[-1]] = {"f": c.draw(st.sampled_from(inner))}
        texts.append(f"{letters} e -> {letters} e one")
        sizes[texts[-1]] = {"one": 1}
    text = c.draw(st.sampled_from(texts))
    return c.graph.reshape(c.name("reshape"), x, text, **sizes.get(text, {}))

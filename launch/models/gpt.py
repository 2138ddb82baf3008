"""A decoder-only transformer language model with normalisation before each block (Radford et al., 2019).

It does not know how it is cut or trained.
"""

from __future__ import annotations

from math import sqrt

from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.op import Init, Tensor
from castile.planner.ops.linear import Linear

RECIPE = Recipe(data="text", batch=8, lr=0.05, momentum=0.9, epochs=1)
SCALE = 0.02


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    seq: int = 128,
    vocab: int = 256,
    tied: bool = False,
) -> Graph:
    """tokens [b, seq] -> logits [b, seq, vocab]; `tied` uses the token table for the head too."""
    if width % heads:
        raise ValueError(f"model gpt: width {width} should be a multiple of heads, {heads}")
    g = Graph("gpt", dtype)
    b = batch or RECIPE.batch
    tokens = g.input("tokens", (b, seq), "b s", "int32")
    targets = g.input("targets", (b, seq), "b s", "int32")
    x = g.embedding("tok", tokens, rows=vocab, features=width, scale=SCALE)
    x = g.add("embed", x, g.param("pos.weight", (seq, width), ("s", "d"), Init("normal", SCALE)))
    for n in range(layers):
        x = _block(g, f"block{n + 1}", x, heads, layers)
    x = g.layer_norm("norm", x)
    logits = _head(g, x, vocab, tied)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, targets))
    return g


def _block(g: Graph, name: str, x: Tensor, heads: int, layers: int) -> Tensor:
    # what is added to the residual stream begins smaller in a deep network, so that the sum keeps its size
    width, added = x.shape[-1], SCALE / sqrt(2 * layers)
    a = g.layer_norm(f"{name}.norm1", x)
    q, k, v = (g.linear(f"{name}.{part}", a, features=width, scale=SCALE) for part in "qkv")
    a = g.attention(f"{name}.attention", q, k, v, heads=heads, causal=True)
    x = g.add(f"{name}.add1", x, g.linear(f"{name}.o", a, features=width, scale=added))
    m = g.layer_norm(f"{name}.norm2", x)
    m = g.gelu(f"{name}.gelu", g.linear(f"{name}.up", m, features=4 * width, scale=SCALE))
    return g.add(f"{name}.add2", x, g.linear(f"{name}.down", m, features=width, scale=added))


def _head(g: Graph, x: Tensor, vocab: int, tied: bool) -> Tensor:
    if tied:
        return g.apply(Linear(), "head", x, g.tensors["tok.weight"])
    return g.linear("head", x, features=vocab, bias=False, scale=SCALE)

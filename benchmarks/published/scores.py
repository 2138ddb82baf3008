"""A GPT as Megatron-LM ran it in 2021: scores of attention are written to memory, made probabilities by one kernel and
dropped out by another. All else is as in castile's own `gpt`. It is there to be priced: nothing is masked, as that
takes a kernel of probabilities no time.

    castile plan benchmarks/published/scores.py:layers=24,width=2304,heads=24 --machine dgx-a100:nodes=4 --batch 512
"""

from __future__ import annotations

from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.op import Init, Tensor

RECIPE = Recipe(data="text", batch=8, lr=1e-4)


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    training: bool = True,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    seq: int = 2048,
    vocab: int = 51200,
    dropout: float = 0.1,
) -> Graph:
    """tokens [b, seq] -> logits [b, seq, vocab]."""
    g, b, rate = Graph("scores", dtype), batch or RECIPE.batch, dropout if training else 0.0
    tokens = g.input("tokens", (b, seq), "b s", "int32")
    targets = g.input("targets", (b, seq), "b s", "int32")
    places = g.param("pos.weight", (seq, width), ("s", "d"), Init("normal", 0.02))
    x = g.add("embed", g.embedding("tok", tokens, rows=vocab, features=width), places)
    for n in range(1, layers + 1):
        x = _block(g, f"block{n}", x, heads, rate)
    logits = g.linear("head", g.layer_norm("norm", x), features=vocab, bias=False)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, targets))
    return g


def _block(g: Graph, name: str, x: Tensor, heads: int, rate: float) -> Tensor:
    width = x.shape[-1]
    a = _attention(g, name, g.layer_norm(f"{name}.norm1", x), heads, rate)
    a = g.dropout(f"{name}.dropped1", g.linear(f"{name}.o", a, features=width), rate)
    x = g.add(f"{name}.add1", x, a)
    m = g.linear(f"{name}.up", g.layer_norm(f"{name}.norm2", x), features=4 * width)
    m = g.linear(f"{name}.down", g.gelu(f"{name}.gelu", m), features=width)
    return g.add(f"{name}.add2", x, g.dropout(f"{name}.dropped2", m, rate))


def _attention(g: Graph, name: str, a: Tensor, heads: int, rate: float) -> Tensor:
    q, k, v = (
        g.reshape(
            f"{name}.{part}_heads", g.linear(f"{name}.{part}", a, features=a.shape[-1]), "b s (h d) -> b s h d", h=heads
        )
        for part in "qkv"
    )
    scores = g.contract(f"{name}.scores", "b s h d, b t h d -> b h s t", q, k)
    shares = g.dropout(f"{name}.dropped", g.softmax(f"{name}.softmax", scores), rate)
    y = g.contract(f"{name}.values", "b h s t, b t h d -> b s h d", shares, v)
    return g.reshape(f"{name}.joined", y, "b s h d -> b s (h d)")

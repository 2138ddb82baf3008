"""An LSTM that reads a sequence, and one that writes another and attends to the first (Luong, Pham and Manning, 2015).

Both are unrolled over their sequences. It does not know how it is cut or trained.
"""

from __future__ import annotations

from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.layers.lstm import State
from castile.planner.op import Tensor

RECIPE = Recipe(data="reverse", batch=64, lr=0.005, epochs=4, optimizer="adamw", schedule="cosine:warmup=50", clip=1.0)


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    layers: int = 1,
    width: int = 64,
    seq: int = 12,
    vocab: int = 32,
) -> Graph:
    """source and given [b, seq] -> logits [b, seq, vocab] of the next symbol after each one given.

    The decoder's layers begin with the states in which the encoder's end. Its top layer attends to the encoder's:
    "general" scores q W k, scaled by 1/sqrt(width); what it finds and the state make tanh(W [context, state]).
    """
    g = Graph("seq2seq", dtype)
    b = batch or RECIPE.batch
    source = g.input("source", (b, seq), "b s", "int32")
    given = g.input("given", (b, seq), "b s", "int32")
    targets = g.input("targets", (b, seq), "b s", "int32")
    read, states = _layers(g, "encoder", source, [None] * layers, width, vocab)
    written, _ = _layers(g, "decoder", given, states, width, vocab)
    query = g.linear("query", written, features=width, bias=False)
    context = g.attention("attention", query, read, read, heads=1)
    joined = g.concat("joined", 2, context, written)
    out = g.tanh("attend", g.linear("attending", joined, features=width, bias=False))
    logits = g.linear("head", out, features=vocab)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, targets))
    return g


def _layers(
    g: Graph, name: str, tokens: Tensor, states: list[State | None], width: int, vocab: int
) -> tuple[Tensor, list[State | None]]:
    """Embedded tokens through a layer for each state; the hidden units of the last one, and each layer's last state."""
    x = g.embedding(f"{name}.tok", tokens, rows=vocab, features=width, scale=1.0)
    last: list[State | None] = []
    for n, state in enumerate(states):
        x, end = g.lstm(f"{name}{n + 1}", x, width, state)
        last.append(end)
    return x, last

"""A language model of LSTM layers (Zaremba, Sutskever and Vinyals, 2014, without dropout), unrolled over the sequence.

It does not know how it is cut or trained.
"""

from __future__ import annotations

from castile.launch.models import Recipe
from castile.planner.graph import Graph

RECIPE = Recipe(data="text", batch=32, lr=0.5, momentum=0.9, epochs=1, clip=1.0)


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    layers: int = 2,
    width: int = 128,
    seq: int = 128,
    vocab: int = 256,
) -> Graph:
    """tokens [b, seq] -> logits [b, seq, vocab]; all steps of a layer share its weights, each sequence begins anew."""
    g = Graph("lstm", dtype)
    b = batch or RECIPE.batch
    tokens = g.input("tokens", (b, seq), "b s", "int32")
    targets = g.input("targets", (b, seq), "b s", "int32")
    x = g.embedding("tok", tokens, rows=vocab, features=width, scale=1.0)
    for n in range(layers):
        x, _ = g.lstm(f"lstm{n + 1}", x, width)
    logits = g.linear("head", x, features=vocab)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, targets))
    return g

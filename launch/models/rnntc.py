"""The text classifier RNNTC of FlexFlow's evaluation (Jia, Zaharia and Aiken, 2019): four LSTM layers of 1024 units,
unrolled over 40 words, and a softmax layer; vocabulary and classes are those of the Movie Reviews (Kim, 2014).

What the softmax layer reads is not published: here it is the mean of the top layer's states, so that every step counts.
It does not know how it is cut or trained.
"""

from __future__ import annotations

from castile.launch.models import Recipe
from castile.planner.graph import Graph

RECIPE = Recipe(data="verdicts", batch=64, lr=1e-3, epochs=1, optimizer="adam", clip=1.0)


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    layers: int = 4,
    width: int = 1024,
    seq: int = 40,
    vocab: int = 18_765,
    classes: int = 2,
) -> Graph:
    """tokens [b, seq] -> logits [b, classes] of the label of each text."""
    g = Graph("rnntc", dtype)
    b = batch or RECIPE.batch
    tokens = g.input("tokens", (b, seq), "b s", "int32")
    label = g.input("label", (b,), "b", "int32")
    x = g.embedding("tok", tokens, rows=vocab, features=width, scale=1.0)
    for n in range(1, layers + 1):
        x, _ = g.lstm(f"lstm{n}", x, width)
    logits = g.linear("head", g.mean("pooled", x, 1), features=classes)
    g.outputs = [logits.name]
    g.minimise(g.cross_entropy("loss", logits, label))
    return g

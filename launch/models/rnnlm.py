"""The language model RNNLM of FlexFlow's evaluation (Jia, Zaharia and Aiken, 2019): the model lstm with two layers of
2048 units, unrolled over 40 words, and a vocabulary of 10,000, that of the Penn Treebank (Mikolov et al., 2010).

It does not know how it is cut or trained.
"""

from __future__ import annotations

from dataclasses import replace

from castile.launch.models import Recipe, lstm
from castile.planner.graph import Graph

RECIPE = Recipe(data="text", batch=64, lr=0.1, momentum=0.9, epochs=1, clip=1.0)


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    layers: int = 2,
    width: int = 2048,
    seq: int = 40,
    vocab: int = 10_000,
) -> Graph:
    """tokens [b, seq] -> logits [b, seq, vocab] of the next word after each."""
    graph = lstm.build(batch or RECIPE.batch, dtype, layers=layers, width=width, seq=seq, vocab=vocab)
    return replace(graph, name="rnnlm")

"""The translation model NMT of FlexFlow's evaluation (Jia, Zaharia and Aiken, 2019): the model seq2seq with two layers
of 1024 units on either side, unrolled over 40 words, and the vocabularies of FlexFlow's own NMT code, 20 * 1024 words.

It does not know how it is cut or trained.
"""

from __future__ import annotations

from dataclasses import replace

from castile.launch.models import Recipe, seq2seq
from castile.planner.graph import Graph

RECIPE = Recipe(data="reverse", batch=64, lr=1e-3, epochs=1, optimizer="adam", schedule="cosine:warmup=100", clip=1.0)


def build(
    batch: int | None = None,
    dtype: str = "float32",
    *,
    layers: int = 2,
    width: int = 1024,
    seq: int = 40,
    vocab: int = 20_480,
) -> Graph:
    """source and given [b, seq] -> logits [b, seq, vocab] of the next word after each one given.

    layers   of the encoder, and as many of the decoder, whose top layer attends to the encoder's
    """
    graph = seq2seq.build(batch or RECIPE.batch, dtype, layers=layers, width=width, seq=seq, vocab=vocab)
    return replace(graph, name="nmt")

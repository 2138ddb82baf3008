"""A made task for models that judge a text: its words have leanings that no sample tells, and the strongest one wins.

It does not know what is learned from it.
"""

from __future__ import annotations

import numpy as np

from castile.launch.data import BELOW, Arrays, Dataset, Shown, split
from castile.runtime import rng

SHOWN: Shown = {"seq": ("tokens", 0), "vocab": ("tokens", BELOW), "classes": ("label", BELOW)}


def load(
    seed: int, *, seq: int = 40, vocab: int = 1000, classes: int = 2, samples: int = 10_000, held_out: float = 0.05
) -> Dataset:
    """tokens [seq] below vocab, small ones frequent, drawn by the seed; label () below classes.

    Each word has a hidden normal number for each class; a text is of the class whose numbers have the largest sum, over
    what texts have on the average.
    held_out   the share of the samples, at least one
    Raises ValueError where there is nothing to draw from or to tell apart.
    """
    if seq < 1 or vocab < 1 or classes < 2:
        raise ValueError(
            f"data set verdicts: seq {seq} and vocab {vocab} should be at least 1, classes {classes} at least 2"
        )
    train, rest = split(seed, "verdicts", samples, held_out)
    drawn = np.square(rng.uniform(seed, "verdicts words", (samples, seq)))
    tokens = np.floor(drawn * vocab).astype(np.int32)
    leanings = rng.normal(seed, "verdicts leanings", (vocab, classes))[tokens].sum(axis=1)
    label = (leanings - leanings.mean(axis=0)).argmax(axis=1)
    columns = {"tokens": tokens, "label": label.astype(np.int32)}
    return Dataset("verdicts", seed, Arrays(columns, train), Arrays(columns, rest))

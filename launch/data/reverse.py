"""A made task for models that turn one sequence into another: give back a sequence's symbols in reverse, or sorted.

It does not know what is learned from it.
"""

from __future__ import annotations

import numpy as np

from castile.launch.data import BELOW, Arrays, Dataset, Shown, split
from castile.runtime import rng

SHOWN: Shown = {"seq": ("source", 0), "vocab": ("source", BELOW)}

ORDERS = ("reverse", "sort")
# What the answer begins with; the symbols of sequences are above it.
START = 0


def load(
    seed: int,
    *,
    seq: int = 12,
    vocab: int = 32,
    order: str = "reverse",
    samples: int = 20_000,
    held_out: float = 0.05,
) -> Dataset:
    """source [seq], symbols 1 to vocab - 1 drawn by the seed; targets [seq], the answer; given [seq], 0 and the answer
    but for its last symbol.

    order      "reverse" or "sort": what the answer is
    held_out   the share of the samples, at least one
    Raises ValueError where there is nothing to draw from.
    """
    if order not in ORDERS:
        raise ValueError(f"data set reverse: order should be one of {', '.join(ORDERS)}, got {order!r}")
    if seq < 1 or vocab < 3:
        raise ValueError(f"data set reverse: seq {seq} should be at least 1 and vocab {vocab} at least 3")
    train, rest = split(seed, "reverse", samples, held_out)
    drawn = rng.uniform(seed, "reverse symbols", (samples, seq))
    source = (1 + np.floor(drawn * (vocab - 1))).astype(np.int32)
    targets = source[:, ::-1] if order == "reverse" else np.sort(source, axis=1)
    given = np.concatenate([np.full_like(source[:, :1], START), targets[:, :-1]], axis=1)
    columns = {"source": source, "given": given, "targets": np.ascontiguousarray(targets)}
    return Dataset("reverse", seed, Arrays(columns, train), Arrays(columns, rest))

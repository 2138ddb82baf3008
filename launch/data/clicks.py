"""A made task for models of categories and numbers: whether something is chosen, by tastes that no sample tells.

It does not know what is learned from it.
"""

from __future__ import annotations

import numpy as np

from castile.launch.data import BELOW, Arrays, Dataset, Shown, split
from castile.runtime import rng

SHOWN: Shown = {"sizes": ("categories", BELOW), "numbers": ("numbers", 0)}

# Of the hidden vectors of categories.
WIDTH = 4


def load(
    seed: int,
    *,
    samples: int = 50_000,
    sizes: str = "1000+200+50+12+7",
    numbers: int = 4,
    held_out: float = 0.1,
) -> Dataset:
    """categories [m] int32, numbers [n] float32 and label [1] float32, drawn by the seed.

    sizes      how many values each category has, joined by +; small ones are frequent
    held_out   the share of the samples, at least one
    Every value of a category has a hidden vector. The odds of a label of 1 go by the products of all pairs of vectors
    and by the numbers.
    """
    counts = [int(size) for size in sizes.split("+") if size.isdecimal() and int(size) > 0]
    if "+".join(map(str, counts)) != sizes or numbers < 1:
        raise ValueError(
            f"data set clicks: sizes {sizes!r} should be numbers joined by +, numbers {numbers} at least 1"
        )
    train, rest = split(seed, "clicks", samples, held_out)
    drawn = np.square(rng.uniform(seed, "clicks categories", (samples, len(counts))))
    categories = np.floor(drawn * counts).astype(np.int32)
    figures = rng.normal(seed, "clicks numbers", (samples, numbers)).astype(np.float32)
    odds = _odds(seed, counts, categories) + 0.5 * figures.sum(axis=1)
    label = rng.uniform(seed, "clicks labels", (samples, 1)) < 1 / (1 + np.exp(-odds[:, None]))
    columns = {"categories": categories, "numbers": figures, "label": label.astype(np.float32)}
    named = {f"category{n}": size for n, size in enumerate(counts, 1)}
    return Dataset("clicks", seed, Arrays(columns, train), Arrays(columns, rest), sizes=named)


def _odds(seed: int, counts: list[int], categories: np.ndarray) -> np.ndarray:
    """The products of all pairs of a sample's hidden vectors, in the logarithm of the odds."""
    vectors = [rng.normal(seed, f"clicks tastes {n}", (size, WIDTH)) for n, size in enumerate(counts)]
    found = np.stack([vectors[n][categories[:, n]] for n in range(len(counts))], axis=1)
    total = found.sum(axis=1)
    return 0.5 * (np.square(total).sum(axis=1) - np.square(found).sum(axis=(1, 2))) / WIDTH

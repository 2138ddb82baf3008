"""Images of noise of any size and number, for steps and rates where no real images are at hand.

It keeps none of them: each is a window on one long line of numbers. It does not know what is learned from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from castile.launch.data import BELOW, Dataset, Shown, split
from castile.runtime import rng

SHOWN: Shown = {"channels": ("image", 0), "size": ("image", 1), "classes": ("label", BELOW)}


def load(
    seed: int,
    *,
    size: int = 224,
    channels: int = 3,
    classes: int = 1000,
    samples: int | None = None,
    held_out: float = 0.05,
) -> Dataset:
    """image [channels, size, size] float32, mean 0 and deviation 1; label () below classes, as many of each.

    Images of one class are one piece of noise, moved along their rows by some elements, so there is something to learn.
    samples    by default 10,000, and at least one of each class
    held_out   the share of the samples, at least one
    Raises ValueError where there are fewer samples than classes.
    """
    samples = max(10_000, classes) if samples is None else samples
    if min(size, channels, classes) < 1 or samples < max(classes, 2):
        raise ValueError(
            f"data set noise: size {size}, channels {channels} and classes {classes} should be at least 1, "
            f"samples {samples} at least 2 and no fewer than classes"
        )
    shape = (channels, size, size)
    line = rng.normal(seed, "noise", (prod(shape) + samples,)).astype(np.float32)
    train, rest = split(seed, "noise", samples, held_out)
    kinds = (np.arange(samples) * classes // samples).astype(np.int32)
    return Dataset("noise", seed, Windows(line, shape, kinds, train), Windows(line, shape, kinds, rest))


@dataclass(frozen=True, eq=False)
class Windows:
    """Images that are windows on a line, the first element of image n at place n.

    line    what the images show, longer than an image by as many elements as there are images
    shape   of an image: channels, height and width
    kinds   the class of each image
    rows    the numbers of the images that are meant, in order
    """

    line: np.ndarray
    shape: tuple[int, int, int]
    kinds: np.ndarray
    rows: np.ndarray

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one sample of each input."""
        return {"image": self.shape, "label": ()}

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Images and labels of the samples of these numbers."""
        rows = {name: self.rows[numbers] for name, numbers in wanted.items()}
        return {
            name: windows(self.line, self.shape, chosen) if name == "image" else self.kinds[chosen]
            for name, chosen in rows.items()
        }


def windows(line: np.ndarray, shape: tuple[int, ...], places: np.ndarray) -> np.ndarray:
    """What a line shows from each of these places on, in that shape [places, *shape]."""
    return np.lib.stride_tricks.sliding_window_view(line, prod(shape))[places].reshape(-1, *shape)

"""Whatever a model takes in, drawn by the seed, for steps and rates of any network where no data are at hand.

There is nothing to learn from it. It keeps none of the samples: each is a window on one long line of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from castile.launch.data import Dataset, InputSpec, split
from castile.launch.data.noise import windows
from castile.runtime import rng

# Below this are whole numbers that number nothing, as the places of a mask.
TRUTHS = 2


def load(seed: int, *, takes: Mapping[str, InputSpec], samples: int = 10_000, held_out: float = 0.05) -> Dataset:
    """each input of the model in its shape: float32 of mean 0 and deviation 1, or from 0 to 1 where it has to lie
    there, or int32 below what it may be.

    held_out   the share of the samples, at least one
    Raises ValueError where there are fewer than two samples.
    """
    train, rest = split(seed, "synthetic", samples, held_out)
    lines = {name: _line(seed, name, taken, samples) for name, taken in takes.items()}
    return Dataset("synthetic", seed, Drawn(takes, lines, train), Drawn(takes, lines, rest))


def _line(seed: int, name: str, taken: InputSpec, samples: int) -> np.ndarray:
    length = (prod(taken.shape) + samples,)
    if not taken.whole and not taken.share:
        return rng.normal(seed, f"synthetic {name}", length).astype(np.float32)
    return rng.uniform(seed, f"synthetic {name}", length)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Samples of which each input is a window on a line, the first element of number n at place n.

    lines   by input what its samples show: numbers, or of whole ones how far each is on the way to what it is below
    rows    the numbers of the samples that are meant, in order
    """

    takes: Mapping[str, InputSpec]
    lines: Mapping[str, np.ndarray]
    rows: np.ndarray

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one sample of each input."""
        return {name: taken.shape for name, taken in self.takes.items()}

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rows of the samples of these numbers."""
        return {name: self._rows(name, self.rows[numbers]) for name, numbers in wanted.items()}

    def _rows(self, name: str, places: np.ndarray) -> np.ndarray:
        taken = self.takes[name]
        shown = windows(self.lines[name], taken.shape, places)
        if not taken.whole:
            return shown.astype(np.float32, copy=False)
        return np.floor(shown * (TRUTHS if taken.below is None else taken.below)).astype(np.int32)

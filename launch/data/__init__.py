"""Data sets by name: `text:file=PATH` is the file text.py of this folder with a setting.

A data set is a module with `load(seed, **settings) -> Dataset`. It does not know models, ranks or strategies: which
samples a step takes is a pure function of seed, step and batch size, so it is the same in every world.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pkgutil import iter_modules
from typing import Any

import numpy as np

from castile.launch import settings
from castile.runtime import rng
from castile.runtime.strict import suggestion


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples for training and samples held out: arrays by the name of the graph's input, sample by sample."""

    name: str
    seed: int
    train: Mapping[str, np.ndarray]
    held_out: Mapping[str, np.ndarray]

    @property
    def num_samples(self) -> int:
        """How many samples there are for training."""
        return len(next(iter(self.train.values())))

    @property
    def num_held_out(self) -> int:
        return len(next(iter(self.held_out.values())))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one sample of each input."""
        return {name: array.shape[1:] for name, array in self.train.items()}

    def steps_per_epoch(self, size: int) -> int:
        """Steps of `size` samples in an epoch; what is left over at its end is not used in that epoch."""
        steps = self.num_samples // size
        if steps == 0:
            raise ValueError(f"data set {self.name} has {self.num_samples} samples, too few for a batch of {size}")
        return steps

    def indices(self, step: int, size: int) -> np.ndarray:
        """The numbers of the `size` samples of a step [size]; every epoch is shuffled anew."""
        epoch, within = divmod(step, self.steps_per_epoch(size))
        return _order(self.seed, self.name, self.num_samples, epoch)[within * size : (within + 1) * size]

    def batch(self, step: int, size: int, samples: tuple[int, int] | None = None) -> dict[str, np.ndarray]:
        """The inputs of a step of `size` samples; of these only numbers lo <= n < hi where `samples` is (lo, hi).

        Integers come as int32, the rest as it is stored.
        """
        lo, hi = samples or (0, size)
        chosen = self.indices(step, size)[lo:hi]
        return {name: _as_input(array[chosen]) for name, array in self.train.items()}

    def held_out_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Held-out samples start to start + size; past the end the last one is repeated, so that a batch is full."""
        chosen = np.minimum(np.arange(start, start + size), self.num_held_out - 1)
        return {name: _as_input(array[chosen]) for name, array in self.held_out.items()}


@lru_cache(maxsize=4)
def _order(seed: int, name: str, num_samples: int, epoch: int) -> np.ndarray:
    return rng.permutation(seed, f"{name} order", num_samples, epoch)


def _as_input(array: np.ndarray) -> np.ndarray:
    return array.astype(np.int32) if array.dtype.kind in "iu" else array


def available() -> tuple[str, ...]:
    """The names of all data sets, found by walking the folder."""
    return tuple(sorted(module.name for module in iter_modules(__path__)))


def load(text: str, seed: int, **defaults: Any) -> Dataset:
    """The data set of NAME or NAME:key=value,...; `defaults` are settings that it takes where it knows them.

    Raises ValueError in one sentence for an unknown name or setting, and for data that are missing or damaged.
    """
    name, given = settings.split(text)
    if name not in available():
        among = ", ".join(available())
        raise ValueError(f"no data set {name!r}{suggestion(name, list(available()))}; there are {among}")
    function = importlib.import_module(f"castile.launch.data.{name}").load
    values = settings.typed(function, given, f"data set {name}", reserved=("seed",))
    taken = {key: value for key, value in defaults.items() if key in settings.names(function)}
    return function(seed, **{**taken, **values})

"""Data sets by name: `text:file=PATH` is the file text.py of this folder with a setting.

A data set is a module with `load(seed, **settings) -> Dataset`, and SHOWN where samples show some of its settings: so
they can be those that a model takes; or `load` asks for all that one takes. It knows no models, ranks or strategies:
which samples a step takes is a pure function of seed, step and batch size, so it is the same in every world.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pkgutil import iter_modules
from typing import Any, NamedTuple, Protocol

import numpy as np

from castile.launch.typed import settings
from castile.runtime import rng
from castile.runtime.strict import suggestion

# A setting that samples show: of which input, and the extent of which dim of a sample, or below what its numbers are.
BELOW = "below"
Shown = Mapping[str, tuple[str, int | str]]
# What `load` is given besides settings.
RESERVED = ("seed", "takes")
# Which samples of a data set there are to ask for.
WHICH = ("held_out", "train", "all")


class Samples(Protocol):
    """Numbered samples; what a graph's inputs take in of them is made when they are taken."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one sample of each input."""

    def __len__(self) -> int: ...

    def take(self, wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """For each input named, its rows [n, ...] of the n samples of these numbers, as `as_input` has them."""


class InputSpec(NamedTuple):
    """What is to be taken of one input of a sample: its shape, and below what each of its whole numbers is to be.

    whole   whether its numbers are whole. share: whether they lie from 0 to 1
    below   in the shape of a sample; None where they are not, or some of them number nothing
    """

    shape: tuple[int, ...]
    whole: bool = False
    below: np.ndarray | None = None
    share: bool = False


@dataclass(frozen=True, eq=False)
class Arrays:
    """Samples that lie in arrays, sample by sample, in memory or in a mapped file.

    columns   an array for each input, all of one length
    rows      the numbers in the arrays of the samples that are meant, in order; all by default
    convert   what is done to an input's rows when they are taken, and only then
    whole     the inputs of which whole numbers are taken, however they are stored
    numbers   which row of the data each of the arrays' is, where the arrays leave some out
    """

    columns: Mapping[str, np.ndarray]
    rows: np.ndarray | None = None
    convert: Mapping[str, Callable[[np.ndarray], np.ndarray]] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    numbers: np.ndarray | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one sample of each input."""
        return {name: array.shape[1:] for name, array in self.columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ())) if self.rows is None else len(self.rows)

    def take(self, wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rows of the samples of these numbers, converted. Raises ValueError as `as_input` does."""
        return {name: self._rows(name, numbers) for name, numbers in wanted.items()}

    def _rows(self, name: str, numbers: np.ndarray) -> np.ndarray:
        # np.take lets other threads run meanwhile
        rows = np.take(self.columns[name], numbers if self.rows is None else self.rows[numbers], axis=0)
        return as_input(name, self.convert[name](rows) if name in self.convert else rows, name in self.whole)


@dataclass(frozen=True, eq=False)
class Whole:
    """Samples of any kind, of some inputs of which whole numbers are taken, however they come."""

    samples: Samples
    names: frozenset[str]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one sample of each input."""
        return self.samples.shapes

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rows of the samples of these numbers. Raises ValueError as `as_input` does."""
        return {name: as_input(name, rows, name in self.names) for name, rows in self.samples.take(wanted).items()}


@dataclass(frozen=True, eq=False)
class Joined:
    """Samples of one kind, and then others; to be taken in rising order."""

    first: Samples
    then: Samples

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one sample of each input that both have."""
        return {name: shape for name, shape in self.first.shapes.items() if name in self.then.shapes}

    def __len__(self) -> int:
        return len(self.first) + len(self.then)

    def take(self, wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rows of the samples of these numbers."""
        cut = len(self.first)
        before = {name: numbers[numbers < cut] for name, numbers in wanted.items()}
        after = {name: numbers[numbers >= cut] - cut for name, numbers in wanted.items()}
        # samples that come one after another have no rows of none
        asked = [(part, of) for part, of in ((self.first, before), (self.then, after)) if any(map(len, of.values()))]
        taken = [part.take(of) for part, of in asked]
        return {name: np.concatenate([one[name] for one in taken]) for name in wanted}


def rows_of(samples: Samples) -> np.ndarray:
    """Which row of the data each of the samples is, counted from 0, through both of two kinds [n]."""
    if isinstance(samples, Joined) and len(samples.first):
        first = rows_of(samples.first)
        return np.concatenate([first, first.max() + 1 + rows_of(samples.then)])
    if not isinstance(samples, Arrays):
        return np.arange(len(samples))
    rows = np.arange(len(samples)) if samples.rows is None else samples.rows
    return rows if samples.numbers is None else samples.numbers[rows]


def full_batch(samples: Samples, start: int, size: int, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Inputs of samples start to start + size; past the end the last one is repeated, so that a batch is full."""
    chosen = np.minimum(np.arange(start, start + size), len(samples) - 1)
    return samples.take(dict.fromkeys(names, chosen))


def as_input(name: str, array: np.ndarray, whole: bool = False) -> np.ndarray:
    """Integers as int32, the rest as it is; where whole numbers are taken, all as int32.

    Raises ValueError in one sentence for integers that int32 cannot hold, and for numbers that should be whole.
    """
    if array.dtype == np.int32 or not (whole or array.dtype.kind in "iu"):
        return array
    if array.dtype.kind == "f" and (odd := array[~(np.isfinite(array) & (np.trunc(array) == array))]).size:
        raise ValueError(
            f"data: input {name!r} has {odd.flat[0]} where the model takes whole numbers: number classes, tokens and "
            "categories from 0 on"
        )
    if (number := outside(array, np.dtype(np.int32))) is not None:
        bounds = np.iinfo(np.int32)
        raise ValueError(
            f"data: input {name!r} has the whole number {number}; int32 goes from {bounds.min} to {bounds.max}"
        )
    return array.astype(np.int32)


def outside(array: np.ndarray, dtype: np.dtype) -> int | None:
    """One of an array's whole numbers that a dtype of such has no room for; None where there is none."""
    bounds = np.iinfo(dtype)
    ends = int(array.min(initial=0)), int(array.max(initial=0))
    return next((number for number in ends if not bounds.min <= number <= bounds.max), None)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples for training and samples held out.

    shuffled      whether each epoch takes the training samples in an order of its own; else number n is the n-th sample
                  since the start, and the samples themselves decide what an epoch brings
    sizes         how many different values an input has that counts them, by column: the rows of embedding tables
    num_dropped   samples that were left out because something of them is missing
    read          of a file that was not read to its end: how many bytes were, and how many there are
    fault         why training would learn nothing of it; "" where nothing is known against it
    """

    name: str
    seed: int
    train: Samples
    held_out: Samples
    shuffled: bool = True
    sizes: Mapping[str, int] = field(default_factory=dict)
    num_dropped: int = 0
    read: tuple[int, int] | None = None
    fault: str = ""

    @property
    def num_samples(self) -> int:
        """How many samples there are for training."""
        return len(self.train)

    @property
    def num_held_out(self) -> int:
        """How many samples are held out; a data set of the user's own may hold none."""
        return len(self.held_out)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one sample of each input."""
        return self.train.shapes

    def num_steps(self, size: int, epochs: int = 1) -> int:
        """Steps of `size` samples that so many epochs fill together: what is left of one begins the next one's first.

        Raises ValueError where one epoch fills none.
        """
        if self.num_samples < size:
            raise ValueError(f"data set {self.name} has {self.num_samples} samples, too few for a batch of {size}")
        return epochs * self.num_samples // size

    def indices(self, step: int, size: int) -> np.ndarray:
        """The numbers of the `size` samples of a step [size]: samples step * size and on of all that training sees.

        The order depends on the seed alone, so that it goes on unbroken at any position; each epoch has its own.
        """
        self.num_steps(size)
        num, begin, end = self.num_samples, step * size, (step + 1) * size
        if not self.shuffled:
            return np.arange(begin, end)
        parts = []
        for epoch in range(begin // num, -(-end // num)):
            order, first = _order(self.seed, self.name, num, epoch), epoch * num
            parts.append(order[max(begin - first, 0) : end - first])
        return np.concatenate(parts)

    def take(self, step: int, size: int, wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """For each input named, its rows of the samples at these places (0 to size - 1) of a step of `size` samples."""
        chosen = self.indices(step, size)
        return self.train.take({name: chosen[places] for name, places in wanted.items()})

    def place(self, number: int) -> str:
        """Which sample the one of such a number is, in words, for people who look for it in the data."""
        epoch, within = divmod(number, self.num_samples)
        return f"sample {rows_of(self.train)[within]}" if self.shuffled else f"sample {within} of epoch {epoch}"

    def batch(self, step: int, size: int, samples: tuple[int, int] | None = None) -> dict[str, np.ndarray]:
        """The inputs of a step of `size` samples; of these only numbers lo <= n < hi where `samples` is (lo, hi).

        Integers come as int32, the rest as it is stored.
        """
        places = np.arange(*(samples or (0, size)))
        return self.take(step, size, dict.fromkeys(self.shapes, places))

    def in_order(self, which: str) -> Samples:
        """Some of WHICH samples: held out, to train on, or all, in the order in which the data have them."""
        parts = [part for name, part in (("train", self.train), ("held_out", self.held_out)) if which in (name, "all")]
        match parts:
            case [Arrays() as first, Arrays() as second] if first.columns is second.columns:
                return _rising(first, second)
        found = [_rising(part) if isinstance(part, Arrays) else part for part in parts]
        return found[0] if len(found) == 1 else Joined(*found)


def _rising(*some: Arrays) -> Arrays:
    """Samples that lie in the same arrays, in the order in which these have them."""
    rows = [np.arange(len(one)) if one.rows is None else one.rows for one in some]
    return replace(some[0], rows=np.sort(np.concatenate(rows)))


def split(seed: int, name: str, num_samples: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the samples to train on, and of those held out: `share` of all, at least one; drawn by the seed.

    Raises ValueError in one sentence where that leaves nothing to train on.
    """
    if not 0 < share < 1:
        raise ValueError(f"data set {name}: the share that is held out should lie between 0 and 1, got {share}")
    if num_samples < 2:
        many = "1 sample is" if num_samples == 1 else f"{num_samples} samples are"
        raise ValueError(f"data set {name}: {many} too few to hold one out")
    order = rng.permutation(seed, f"{name} split", num_samples)
    num_train = num_to_train_on(num_samples, share)
    return order[:num_train], order[num_train:]


def num_to_train_on(num_samples: int, share: float) -> int:
    """Of two samples or more those that are left where `share` is held out: at least one, and not all."""
    return min(max(num_samples - round(num_samples * share), 1), num_samples - 1)


@lru_cache(maxsize=4)
def _order(seed: int, name: str, num_samples: int, epoch: int) -> np.ndarray:
    return rng.permutation(seed, f"{name} order", num_samples, epoch)


def available() -> tuple[str, ...]:
    """The names of all data sets, found by walking the folder."""
    return tuple(sorted(module.name for module in iter_modules(__path__)))


def load(text: str, seed: int, takes: Mapping[str, InputSpec] | None = None) -> Dataset:
    """The data set of NAME or NAME:key=value,...; what is not said there is as samples have to be to be taken.

    Raises ValueError in one sentence for an unknown name or setting, and for data that are missing or damaged.
    """
    name, given = settings.split(text)
    if name not in available():
        among = ", ".join(available())
        near = _of_file(name) or suggestion(name, list(available()))
        raise ValueError(f"no data set {name!r}{near}; there are {among}")
    module = importlib.import_module(f"castile.launch.data.{name}")
    values = settings.typed(module.load, given, f"data set {name}", RESERVED)
    found: Dataset = module.load(seed, **{**_fitting(module, takes or {}), **values})
    whole = frozenset(name for name, taken in (takes or {}).items() if taken.whole)
    if not whole:
        return found
    train, held_out = (_with_whole_numbers(some, whole) for some in (found.train, found.held_out))
    return replace(found, train=train, held_out=held_out)


def has_setting(name: str, setting: str) -> bool:
    """Whether there is such a data set with such a setting."""
    module = importlib.import_module(f"castile.launch.data.{name}") if name in available() else None
    return module is not None and setting in settings.names(module.load, RESERVED)


def changed_setting(text: str, before: str) -> str:
    """A setting with which samples mean other things than those of a data set before; "" where none is known.

    A module says in FITTED which its own are.
    """
    (name, given), (known, trained) = settings.split(text), settings.split(before)
    module = importlib.import_module(f"castile.launch.data.{name}") if name == known and name in available() else None
    ours, theirs = ({key: os.path.realpath(value) for key, value in one.items()} for one in (given, trained))
    return next((key for key in getattr(module, "FITTED", ()) if ours.get(key) != theirs.get(key)), "")


def _with_whole_numbers(samples: Samples, names: frozenset[str]) -> Samples:
    """Samples of whose inputs these are taken as whole numbers."""
    return replace(samples, whole=names) if isinstance(samples, Arrays) else Whole(samples, names)


def _fitting(module: Any, takes: Mapping[str, InputSpec]) -> dict[str, Any]:
    """What a data set is given so that its samples are what is taken: settings that they show, or all, if it asks."""
    found: dict[str, Any] = {"takes": takes} if "takes" in settings.names(module.load) else {}
    kinds = settings.names(module.load, RESERVED)
    for key, (name, what) in getattr(module, "SHOWN", {}).items():
        taken = takes.get(name, InputSpec(()))
        if isinstance(what, int) and what < len(taken.shape):
            found[key] = taken.shape[what]
        elif what == BELOW and taken.below is not None:
            every = taken.below.reshape(-1).tolist()
            found[key] = min(every) if kinds[key] is int else "+".join(map(str, every))
    return found


def _of_file(path: str) -> str:
    """Which data set is read from a file of such a name, by the READS of its module; "" where none is."""
    for name in available():
        reads = getattr(importlib.import_module(f"castile.launch.data.{name}"), "READS", ())
        if path.endswith(reads or "\n"):
            return f" (did you mean '{name}:file={path}'?)"
    return ""

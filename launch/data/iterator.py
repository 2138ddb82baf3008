"""Samples that the user's own Python code makes: a file with a function `samples(seed, epoch)` that yields them.

It does not know what they are, and never asks for a sample twice unless training starts anew.

What the file gives:

    samples(seed, epoch)    yields dicts of arrays, input by input, one sample each; the order is the function's own, so
                            it shuffles by seed and epoch if it will. It yields the same whenever it is asked the same
    held_out(seed)          yields the samples to judge by in the same form; a file without it holds none out

Training position is a count of samples: position p is sample p modulo `length` of epoch p divided by `length`. To
resume there, samples(seed, epoch) is begun and what comes before is passed over; a function with a parameter of this
name, samples(seed, epoch, start), begins at that sample itself. Other parameters keep their defaults. Every rank goes
through all samples and keeps its own; a function that begins anywhere is begun at these.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from castile.launch.data import Arrays, Dataset, as_input
from castile.launch.typed import theirs

# past that, a function that never ends is more likely than one that is worth going through just to count
MOST_COUNTED = 2**20
Sample = dict[str, np.ndarray]

# Names of files that are meant where one stands for a data set.
READS = (".py",)


def load(seed: int, *, file: str = "", length: int = 0) -> Dataset:
    """The inputs that the samples name, integers as int32, in the order in which they come.

    file     a Python file with samples(seed, epoch) and, to judge by, held_out(seed)
    length   how many samples make an epoch; by default those of samples(seed, 0), which is gone through to count them
    Raises ValueError in one sentence where the file, its functions or what they yield are not as they should be.
    """
    if not file or length < 0:
        raise ValueError(
            "data set iterator: give file=PATH.py with a function samples(seed, epoch); length is not below 0"
        )
    module = theirs.module(file, "data set iterator:", "samples(seed, epoch) that yields dicts of arrays")
    stream = Stream(file, module.samples, seed, length)
    held_out = _held_out(stream, getattr(module, "held_out", None), seed)
    return Dataset("iterator", seed, stream, held_out, shuffled=False)


class Stream:
    """Samples in the order in which a function yields them; number n is sample n modulo the length of its epoch.

    Going on is cheap, going back begins the epoch anew, and so does passing samples over where it can begin at any.
    """

    def __init__(self, file: str, function: Callable[..., Any], seed: int, length: int) -> None:
        self.file, self._function, self._seed = file, function, seed
        self._seeks = "start" in inspect.signature(function).parameters
        # one thread reads ahead while another may ask for a sample to look at
        self._lock = threading.Lock()
        self._iterator: Iterator[Any] = iter(())
        self._epoch, self._within = -1, 0
        self._length = length or self._count()
        self.form = form_of(self._sample(0))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one sample of each input, as the first one has them."""
        return dict(self.form)

    def __len__(self) -> int:
        return self._length

    def take(self, wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rows of the samples of these numbers, best asked for in rising order. Raises ValueError in one sentence."""
        asked = {name: set(numbers.tolist()) for name, numbers in wanted.items()}
        rows: dict[tuple[str, int], np.ndarray] = {}
        with self._lock:
            for number in sorted(set().union(*asked.values())):
                sample = self._sample(number)
                if form_of(sample) != self.form:
                    words = f"{self._place(number)} has {words_of(form_of(sample))}"
                    raise ValueError(f"{self._who} {words}, the first has {words_of(self.form)}")
                rows |= {(name, number): sample[name] for name in wanted if number in asked[name]}
        return {name: stacked(name, [rows[name, n] for n in numbers.tolist()]) for name, numbers in wanted.items()}

    @property
    def _who(self) -> str:
        return f"data set iterator: {self.file}:"

    def _place(self, number: int) -> str:
        return "sample {1} of epoch {0}".format(*divmod(number, self._length))

    def _sample(self, number: int) -> Sample:
        """Sample `number`, reached from the last one where that lies before it in the same epoch and none between is
        made in vain.
        """
        epoch, within = divmod(number, self._length)
        if epoch != self._epoch or within < self._within or (self._seeks and within > self._within):
            self._begin(epoch, within if self._seeks else 0)
        while self._within < within:
            self._advance()
        return arrays(self.file, self._who, self._place(number), self._advance())

    def _begin(self, epoch: int, start: int) -> None:
        # until it has begun no epoch has, so that a question after a failure begins anew
        self._epoch = -1
        at = {"start": start} if self._seeks else {}
        words = ", ".join([str(self._seed), str(epoch), *(f"{name}={value}" for name, value in at.items())])
        with theirs.running(self.file, f"{self._who} samples({words})"):
            self._iterator = iter(self._function(self._seed, epoch, **at))
        self._epoch, self._within = epoch, start

    def _advance(self) -> Any:
        epoch, self._epoch = self._epoch, -1
        with theirs.running(self.file, f"{self._who} samples({self._seed}, {epoch}) at sample {self._within}"):
            found = next(self._iterator, _END)
        if found is _END:
            words = f"samples({self._seed}, {epoch}) ended after {self._within} samples"
            raise ValueError(f"{self._who} {words}; an epoch has {self._length}")
        self._epoch, self._within = epoch, self._within + 1
        return found

    def _count(self) -> int:
        self._begin(0, 0)
        with theirs.running(self.file, f"{self._who} samples({self._seed}, 0)"):
            count = sum(1 for _ in islice(self._iterator, MOST_COUNTED + 1))
        self._epoch = -1
        if not 0 < count <= MOST_COUNTED:
            many = f"more than {MOST_COUNTED}" if count else "no"
            raise ValueError(f"{self._who} samples yields {many} samples an epoch; say how many make one by length=N")
        return count


_END = object()


def form_of(sample: Sample) -> dict[str, tuple[int, ...]]:
    """The shape of each input of a sample."""
    return {name: value.shape for name, value in sample.items()}


def words_of(form: Mapping[str, tuple[int, ...]]) -> str:
    """Names and shapes, for people."""
    return ", ".join(f"{name} {list(shape)}" for name, shape in sorted(form.items()))


def arrays(file: str, who: str, place: str, found: Any) -> Sample:
    """A sample as arrays of numbers. Raises ValueError where it is something else."""
    if not isinstance(found, Mapping) or not found:
        raise ValueError(f"{who} {place} is of type {type(found).__name__}; a sample is a dict of arrays by input")
    with theirs.running(file, f"{who} {place}"):
        sample = {str(name): np.asarray(value) for name, value in found.items()}
    odd = [name for name, value in sample.items() if value.dtype.kind not in "biuf"]
    if odd:
        raise ValueError(f"{who} {place}: {odd[0]!r} holds {sample[odd[0]].dtype}; inputs are numbers")
    return sample


def stacked(name: str, rows: list[np.ndarray]) -> np.ndarray:
    """One array [n, ...] of n samples' rows."""
    return as_input(name, np.stack(rows)) if rows else np.empty((0,), np.float32)


def _held_out(stream: Stream, function: Any, seed: int) -> Arrays:
    """The samples of the file's held_out(seed), kept; none where it has no such function."""
    if function is None:
        return Arrays({})
    who = f"data set iterator: {stream.file}: held_out({seed})"
    with theirs.running(stream.file, who):
        found = list(islice(function(seed), MOST_COUNTED + 1))
    if not 0 < len(found) <= MOST_COUNTED:
        raise ValueError(f"{who} yields {'no' if not found else f'more than {MOST_COUNTED}'} samples")
    samples = [arrays(stream.file, who, f"sample {n}", sample) for n, sample in enumerate(found)]
    for n, sample in enumerate(samples):
        if form_of(sample) != stream.form:
            has = words_of(form_of(sample))
            raise ValueError(f"{who} sample {n} has {has}, those to train on have {words_of(stream.form)}")
    return Arrays({name: stacked(name, [sample[name] for sample in samples]) for name in stream.form})

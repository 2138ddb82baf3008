"""Feeding: each rank loads only its own samples of a data set, the next step's while the current step runs.

It does not know how a step is run, nor what the samples are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from math import inf
from types import TracebackType

import numpy as np

from castile.launch.data import Dataset
from castile.launch.processes.ranks import UserError
from castile.runtime.region import Box, slices

AHEAD = 2
# To hand a step over to the thread and to get it back costs both more time than this.
QUICK_SECONDS = 100e-6
# Of so many steps what was fed is kept, where it is not had again: of the one that runs, one that is fed meanwhile, and
# one before.
KEPT = 3


def places(inputs: Sequence[tuple[str, Box]]) -> dict[str, np.ndarray]:
    """For each input, the positions in the batch of the samples that its boxes need, ascending."""
    ranges: dict[str, list[np.ndarray]] = {}
    for name, box in inputs:
        ranges.setdefault(name, []).append(np.arange(box.lo[0], box.hi[0]))
    return {name: np.unique(np.concatenate(parts)) for name, parts in ranges.items()}


@dataclass(frozen=True, eq=False)
class Rows:
    """Some samples of a step's batch; called with an input and a box of the whole input, it returns that box.

    places   for each input, the positions of the samples in the batch, ascending
    rows     for each input, the samples in the same order
    """

    places: dict[str, np.ndarray]
    rows: dict[str, np.ndarray]

    def __call__(self, name: str, box: Box) -> np.ndarray:
        """A box of the whole input; its samples are among those that the feeder loads."""
        lo, hi = box.lo[0], box.hi[0]
        begin, end = np.searchsorted(self.places[name], (lo, hi)).tolist()
        assert end - begin == hi - lo, f"{name} {box} was not asked for"
        return self.rows[name][(slice(begin, end), *slices(box)[1:])]


class Feeder(Iterator[Rows]):
    """The feeds of steps first_step to first_step + num_steps, loaded in a thread that is at most two steps ahead. If
    the last one took little time and the thread is idle, the caller loads the next one itself.

    inputs           each input of the graph with a box of the whole input that is to be filled; one may occur
                     repeatedly
    batch            samples a step of the whole job
    waited_seconds   how long steps waited for samples: 0 where loading is hidden

    A context manager: the thread ends when it ends, and when a step's samples cannot be loaded. An error of the thread
    is raised by `next` with its cause, and names the step; a user's mistake, such as a missing file, as a user's
    mistake.
    """

    def __init__(
        self, dataset: Dataset, inputs: Sequence[tuple[str, Box]], batch: int, first_step: int, num_steps: int
    ) -> None:
        self.waited_seconds = 0.0
        self._dataset, self._batch, self._places = dataset, batch, places(inputs)
        self._steps = iter(range(first_step, first_step + num_steps))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="castile samples")
        self._ahead: deque[tuple[int, Future[Rows]]] = deque()
        self._last_seconds = inf
        self._given: deque[tuple[int, Rows]] = deque(maxlen=0 if dataset.shuffled else KEPT)
        self._look_ahead(AHEAD)

    def __next__(self) -> Rows:
        """The next step's feed. Raises ValueError, MemoryError or RuntimeError where its samples could not be loaded.
        """
        if not self._ahead:
            self.close()
            raise StopIteration
        step, future = self._ahead.popleft()
        begun = time.perf_counter()
        try:
            rows = future.result()
        except Exception as error:
            self.close()
            raise _of_step(step + 1, error) from error
        self._given.append((step, rows))
        self._look_ahead(1)
        self.waited_seconds += time.perf_counter() - begun
        return rows

    @property
    def is_busy(self) -> bool:
        """Whether the thread is loading, or about to."""
        return not all(future.done() for _, future in self._ahead)

    def again(self, step: int, names: Collection[str]) -> Rows:
        """These inputs of a step that was fed: its whole batch; of sequential samples, what this rank loaded for the
        last few steps.
        """
        if self._dataset.shuffled:
            whole = dict.fromkeys(names, np.arange(self._batch))
            return Rows(whole, self._dataset.take(step, self._batch, whole))
        return dict(self._given).get(step, Rows({}, {}))

    def __enter__(self) -> Feeder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread and drop what it loaded; there are no more feeds."""
        self._steps = iter(range(0))
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._ahead.clear()

    def _look_ahead(self, count: int) -> None:
        for step in islice(self._steps, count):
            is_quick = not self.is_busy and self._last_seconds < QUICK_SECONDS
            self._ahead.append((step, _made(self._rows, step) if is_quick else self._thread.submit(self._rows, step)))

    def _rows(self, step: int) -> Rows:
        begun = time.perf_counter()
        rows = Rows(self._places, self._dataset.take(step, self._batch, self._places))
        self._last_seconds = time.perf_counter() - begun
        return rows


def _made(make: Callable[[int], Rows], step: int) -> Future[Rows]:
    """A future that is computed at once."""
    future: Future[Rows] = Future()
    try:
        future.set_result(make(step))
    except Exception as error:
        future.set_exception(error)
    return future


def _of_step(step: int, error: Exception) -> Exception:
    """The same error, naming the step, which counts from 1."""
    where = f"samples of step {step}: "
    if isinstance(error, OSError) and error.filename is not None:
        return UserError(f"{where}{error.filename}: {error.strerror}")
    if isinstance(error, ValueError | MemoryError):
        kind = ValueError if isinstance(error, ValueError) else MemoryError
        return kind(f"{where}{error}")
    return RuntimeError(f"{where}{type(error).__name__}: {error}")

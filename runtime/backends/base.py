"""What a backend is: the memory of one processor, and its tasks as calls upon that memory.

It does not know when a call is made, nor what the calls compute.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from castile.runtime.comm.base import End
from castile.runtime.comm.messages import Request
from castile.runtime.executor import Program
from castile.runtime.memory import Packing
from castile.runtime.region import Box
from castile.runtime.strict import suggestion
from castile.runtime.task import Task, TaskGraph
from castile.runtime.worker import Worker

# A persistent array: its region, the box it holds, and the processor it lies on.
Key = tuple[str, Box, int]
State = dict[Key, np.ndarray]
# What lies on a processor only while a step runs, by its number.
Arenas = dict[int, np.ndarray]
# Is shown a task that has run, and the arrays of its views.
Look = Callable[[Task, list[np.ndarray]], None]


def is_out_of_range(error: BaseException) -> bool:
    """Whether a task raised it as an integer among its data is out of range: for who knows tasks and no kernels."""
    # who only plans needs no kernels
    from castile.kernels.ids import OutOfRange

    return isinstance(error, OutOfRange)


@dataclass(frozen=True, eq=False)
class Share:
    """What a processor does in a step: its program, the tasks in that order, their tags, its end of transfers."""

    memory: Backend
    steps: Program
    tasks: Sequence[Task]
    tags: Sequence[int]
    end: End


class Backend(ABC):
    """One processor of a task graph.

    proc             its number
    persistent       role -> the persistent arrays of this processor: those found in `state` are used, others join it
    arena            all else, which no step finds as the one before left it
    nbytes           what this processor's memory takes: the packing's peak, but for what was found in `state` or lent
    workspace_bytes  what kernels took besides, which no plan knows of
    feeds_ahead      whether `fill` of an input is for the next step even while one is under way
    """

    proc: int
    persistent: dict[str, State]
    arena: np.ndarray
    nbytes: int
    workspace_bytes: int = 0
    feeds_ahead: bool = False

    @abstractmethod
    def __init__(
        self, graph: TaskGraph, packing: Packing, proc: int, state: State, poison: bool,
        lent: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """With `poison` all that no task has written yet holds NaN: memory is filled when a buffer's life begins.

        lent   the arena of another graph, none of whose steps runs while one of this does; used as far as it goes
        """

    @abstractmethod
    def compute(self, task: Task) -> Callable[[], object]:
        """The task as a call that computes it."""

    @abstractmethod
    def transfer(self, task: Task, end: End, tag: int) -> Callable[[], Request]:
        """This processor's part of a transfer as a call that begins it."""

    def worker(self, steps: Program, tasks: Sequence[Task], tags: Sequence[int], end: End) -> Worker:
        """Whoever carries out a program of this processor; its tasks, and their tags as transfers, in its order."""
        parts = zip(tasks, tags, steps.asynchronous, strict=True)
        return Worker(steps, [self.transfer(t, end, tag) if moves else self.compute(t) for t, tag, moves in parts])

    @classmethod
    def workers(cls, shares: Sequence[Share]) -> list[Worker]:
        """Whoever carries out the programs of a rank's processors: one for each."""
        return [s.memory.worker(s.steps, s.tasks, s.tags, s.end) for s in shares]

    def fill(self, array: np.ndarray, values: np.ndarray | float) -> None:
        """Gives a persistent array its numbers, between two steps."""
        array[...] = values

    def read(self, array: np.ndarray) -> np.ndarray:
        """The numbers of a persistent array on the host, right until the next step."""
        return array


def names() -> list[str]:
    """The backends there are: the files and folders beside this one."""
    here = Path(__file__).parent
    files = {path.stem for path in here.glob("*.py")} | {path.parent.name for path in here.glob("*/__init__.py")}
    return sorted(files - {"__init__", Path(__file__).stem})


def load(name: str) -> type[Backend]:
    """The backend of that name. Raises ValueError where there is none, or its library is not there."""
    if name not in names():
        raise ValueError(f"no backend {name!r}{suggestion(name, names())}; there are {', '.join(names())}")
    try:
        found: type[Backend] = importlib.import_module(f"castile.runtime.backends.{name}").Backend
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("castile"):
            raise
        raise ValueError(f"backend {name!r} needs the library {error.name}, which is not there") from error
    return found

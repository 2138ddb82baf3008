"""The brain of a processor's step: told what has finished, it says what to start and what to wait for.

It does not know clocks, arrays, kernels or messages: whoever obeys it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from castile.runtime.task import Kind, TaskGraph


class Start(NamedTuple):
    """Start the task that stands at `position` of the program; an asynchronous one is reported when it has finished."""

    position: int
    task: int
    asynchronous: bool


class Wait(NamedTuple):
    """Nothing can start before these tasks have finished."""

    tasks: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A processor's step: its tasks in issue order, which are asynchronous, and what each waits for.

    waits[i] names asynchronous tasks only, each of them once in the program: whoever comes later comes after it.
    """

    tasks: tuple[int, ...]
    asynchronous: tuple[bool, ...]
    waits: tuple[tuple[int, ...], ...]


def is_transfer(kind: int) -> bool:
    """True of tasks in which several processors take part: asynchronous on a CPU, where kernels are not."""
    return kind >= Kind.MOVE


def program(
    graph: TaskGraph, order: Sequence[int], edges: np.ndarray, asynchronous: Callable[[int], bool] = is_transfer
) -> Program:
    """The program of a processor whose tasks are issued in that order.

    edges[E, 2]: (a, b) where b takes over memory of a. Every wait must point to an earlier task of the order, and
    transfers stand in one order on all processors: then the first transfer that is not done can always be done.
    """
    position = {int(task): at for at, task in enumerate(order)}
    before = _reuses(edges, position)
    flags = tuple(asynchronous(int(graph.kind[task])) for task in position)
    waits, seen = [], set[int]()
    for at, task in enumerate(position):
        sources = [int(a) for a in graph.needs_of(task) if int(a) in position] + before.get(task, [])
        late = [a for a in sources if position[a] >= at]
        assert not late, f"task {task} is issued before {late}, which it must wait for"
        new = sorted({a for a in sources if flags[position[a]]} - seen)
        seen.update(new)
        waits.append(tuple(new))
    return Program(tuple(position), flags, tuple(waits))


def _reuses(edges: np.ndarray, position: dict[int, int]) -> dict[int, list[int]]:
    """For each task of the program, those of the program whose memory it takes over."""
    before: dict[int, list[int]] = {}
    mine = np.fromiter(position, np.int64, len(position))
    for a, b in edges[np.isin(edges[:, 1], mine)].tolist():
        if a in position:
            before.setdefault(b, []).append(a)
    return before


class Executor:
    """Runs a program step by step: `begin`, then `next` until it gives None, with `finished` whenever a task has."""

    __slots__ = ("_at", "_end", "_outstanding", "_starts", "_waits")

    def __init__(self, program: Program) -> None:
        self._starts = tuple(map(Start, range(len(program.tasks)), program.tasks, program.asynchronous))
        self._waits = program.waits
        self._end = len(program.tasks)
        self._outstanding: set[int] = set()
        self._at = self._end

    def begin(self) -> None:
        """Begins a step; the one before must have ended."""
        assert self._at == self._end and not self._outstanding, "a step is still under way"
        self._at = 0

    def next(self) -> Start | Wait | None:
        """What to do now; None when the step has ended.

        A task that is not asynchronous has finished when this is called again.
        """
        at = self._at
        if at == self._end:
            return Wait(tuple(sorted(self._outstanding))) if self._outstanding else None
        for task in self._waits[at]:
            if task in self._outstanding:
                return Wait(tuple(t for t in self._waits[at] if t in self._outstanding))
        self._at = at + 1
        start = self._starts[at]
        if start.asynchronous:
            self._outstanding.add(start.task)
        return start

    def finished(self, task: int) -> None:
        """An asynchronous task has finished."""
        self._outstanding.remove(task)

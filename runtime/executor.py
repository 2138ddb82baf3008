"""The executor: a state machine for a processor's step that is told which tasks have finished, and says which to start
and which to wait for.

It does not know clocks, arrays, kernels or messages: its caller does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from castile.runtime.task import Kind, TaskGraph


class Start(NamedTuple):
    """Start the task at `position` of the program; of an asynchronous one `finished` is called when it has finished."""

    position: int
    task: int
    asynchronous: bool


class Wait(NamedTuple):
    """No task can start before one of these has finished."""

    tasks: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A processor's step: its tasks in issue order, which of them are asynchronous, and what each waits for.

    There are two queues, each in issue order: synchronous tasks, which finish when their call returns, and asynchronous
    ones, which start as soon as their needs allow, so that other processors wait for them as little as possible.

    waits   by task the asynchronous tasks that it waits for; each is named once a queue, as later tasks of the queue
            come after it
    after   by asynchronous task the number of synchronous tasks that must have finished before it; 0 for others
    """

    tasks: tuple[int, ...]
    asynchronous: tuple[bool, ...]
    waits: tuple[tuple[int, ...], ...]
    after: tuple[int, ...]


def is_transfer(kind: int) -> bool:
    """Whether several processors take part in a task: such tasks are asynchronous on a CPU, where kernels are not."""
    return kind >= Kind.MOVE


def program(
    graph: TaskGraph, order: Sequence[int], edges: np.ndarray, asynchronous: Callable[[int], bool] = is_transfer
) -> Program:
    """The program of a processor.

    order          its tasks in issue order. Every task waits for earlier ones only, and transfers are in the same order
                   on all processors, so the first transfer that is not done can always be done: no deadlock
    edges          int64[E, 2]: (a, b) where b reuses memory of a
    asynchronous   whether tasks of a kind are asynchronous
    """
    position = {int(task): at for at, task in enumerate(order)}
    before = _reuses(edges, position)
    flags = tuple(asynchronous(int(graph.kind[task])) for task in position)
    finished_by = np.cumsum([not flag for flag in flags]).tolist()
    waits, after = [], []
    seen: tuple[set[int], set[int]] = (set(), set())
    for at, task in enumerate(position):
        sources = [int(a) for a in graph.needs_of(task) if int(a) in position] + before.get(task, [])
        late = [a for a in sources if position[a] >= at]
        assert not late, f"task {task} is issued before {late}, which it must wait for"
        new = sorted({a for a in sources if flags[position[a]]} - seen[flags[at]])
        seen[flags[at]].update(new)
        waits.append(tuple(new))
        synchronous = [finished_by[position[a]] for a in sources if not flags[position[a]]]
        after.append(max(synchronous, default=0) if flags[at] else 0)
    return Program(tuple(position), flags, tuple(waits), tuple(after))


def _reuses(edges: np.ndarray, position: dict[int, int]) -> dict[int, list[int]]:
    """By task of the program: the tasks of the program whose memory it reuses."""
    before: dict[int, list[int]] = {}
    mine = np.fromiter(position, np.int64, len(position))
    for a, b in edges[np.isin(edges[:, 1], mine)].tolist():
        if a in position:
            before.setdefault(b, []).append(a)
    return before


class Executor:
    """Runs a program: `begin`, then `next` until it returns None; `finished` for each asynchronous task that ends."""

    __slots__ = ("_after", "_at", "_end", "_finished", "_next", "_num", "_outstanding", "_queues", "_waits")

    def __init__(self, program: Program) -> None:
        starts = list(map(Start, range(len(program.tasks)), program.tasks, program.asynchronous))
        waits = list(zip(starts, program.waits, strict=True))
        self._queues = tuple(tuple(s for s in starts if s.asynchronous is kind) for kind in (False, True))
        self._waits = tuple(tuple(w for s, w in waits if s.asynchronous is kind) for kind in (False, True))
        self._after = tuple(a for s, a in zip(starts, program.after, strict=True) if s.asynchronous)
        self._num, self._end = len(self._queues[0]), len(self._queues[1])
        self._at, self._next = self._num, self._end
        self._finished: set[int] = set()
        self._outstanding: set[int] = set()

    @property
    def furthest(self) -> int:
        """The largest position of a task that was started, 0 before any."""
        last = (queue[at - 1].position for queue, at in zip(self._queues, (self._at, self._next)) if at)
        return max(last, default=0)

    def begin(self) -> None:
        """Begin a step; the one before must have ended."""
        assert self._at == self._num and self._next == self._end and not self._outstanding, "a step is still under way"
        self._at = self._next = 0
        self._finished.clear()

    def next(self) -> Start | Wait | None:
        """What to do now; None once the step has ended. A synchronous task has finished when this is called again."""
        at, following = self._at, self._next
        blocking: tuple[int, ...] = ()
        if following < self._end and self._after[following] <= at:
            blocking = self._waits[1][following]
            if self._finished.issuperset(blocking):
                self._next = following + 1
                start = self._queues[1][following]
                self._outstanding.add(start.task)
                return start
        if at < self._num:
            waits = self._waits[0][at]
            if not waits or self._finished.issuperset(waits):
                self._at = at + 1
                return self._queues[0][at]
            blocking += waits
        elif following == self._end:
            blocking = tuple(sorted(self._outstanding))
        return self._wait(blocking) if blocking else None

    def _wait(self, tasks: tuple[int, ...]) -> Wait:
        return Wait(tuple(task for task in dict.fromkeys(tasks) if task not in self._finished))

    def finished(self, task: int) -> None:
        """Note that an asynchronous task has finished."""
        self._outstanding.remove(task)
        self._finished.add(task)

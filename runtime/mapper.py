"""Mappers: the order in which a processor issues its tasks.

They may reorder what a processor computes, never transfers, which are in one order on all processors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from castile.runtime.executor import is_transfer
from castile.runtime.task import TaskGraph
from castile.runtime.timeline import Timeline


class Mapper(ABC):
    """Decides the issue order of a processor's tasks."""

    @abstractmethod
    def order(self, graph: TaskGraph, timeline: Timeline, proc: int) -> np.ndarray:
        """The numbers of the processor's tasks, in issue order."""


class Default(Mapper):
    """The order of the simulated timeline: by (start, the task's key)."""

    def order(self, graph: TaskGraph, timeline: Timeline, proc: int) -> np.ndarray:
        mine = graph.tasks_of(proc)
        at = np.searchsorted(timeline.task, mine).clip(max=len(timeline.task) - 1)
        assert np.array_equal(timeline.task[at], mine), f"the timeline lacks tasks of processor {proc}"
        return mine[np.lexsort((graph.order[mine], timeline.start[at]))]


class Logging(Mapper):
    """Records the orders of another mapper: `orders[proc]`."""

    def __init__(self, mapper: Mapper) -> None:
        self._mapper = mapper
        self.orders: dict[int, tuple[int, ...]] = {}

    def order(self, graph: TaskGraph, timeline: Timeline, proc: int) -> np.ndarray:
        decided = self._mapper.order(graph, timeline, proc)
        self.orders[proc] = tuple(int(task) for task in decided)
        return decided


class Replay(Mapper):
    """Issues in a recorded order. Raises ValueError where it does not fit the graph, or moves a transfer."""

    def __init__(self, orders: Mapping[int, Sequence[int]]) -> None:
        self._orders = orders

    def order(self, graph: TaskGraph, timeline: Timeline, proc: int) -> np.ndarray:
        if proc not in self._orders:
            raise ValueError(f"the recorded order has no processor {proc}; record it for this plan again")
        recorded = np.asarray(self._orders[proc], dtype=np.int64)
        check(graph, timeline, proc, recorded)
        return recorded


def check(graph: TaskGraph, timeline: Timeline, proc: int, order: np.ndarray, edges: np.ndarray | None = None) -> None:
    """Raises ValueError where an order does not have each of the processor's tasks once, breaks a need, or moves a
    transfer.

    edges   int64[E, 2]: (a, b) where b reuses memory of a, so must come after it
    """
    default = Default().order(graph, timeline, proc)
    if not np.array_equal(np.sort(order), np.sort(default)):
        raise ValueError(f"the issue order of processor {proc} does not hold each of its {len(default)} tasks once")
    transfers = [[int(t) for t in tasks if is_transfer(int(graph.kind[t]))] for tasks in (order, default)]
    for found, expected in zip(*transfers):
        if found != expected:
            raise ValueError(
                f"the issue order of processor {proc} has transfer {_name(graph, found)} where all others expect "
                f"{_name(graph, expected)}; only what is computed may be reordered"
            )
    position = {int(task): at for at, task in enumerate(order)}
    needs = [(int(a), task) for task in position for a in graph.needs_of(task)]
    for a, b in [*needs, *(edges.tolist() if edges is not None else [])]:
        if a in position and b in position and position[a] >= position[b]:
            raise ValueError(
                f"the issue order of processor {proc} has {_name(graph, b)} before {_name(graph, a)}, "
                "which must come first"
            )


def _name(graph: TaskGraph, task: int) -> str:
    return repr(graph.tasks[task].name)

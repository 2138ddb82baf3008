"""Collapse: processors of equal role are simulated once, and the result holds for all of them exactly.

It does not know durations: what costs the same by name is taken to last the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

import numpy as np

from castile.planner.rows import compressed
from castile.planner.simulate import Simulated
from castile.runtime.task import NUM_LANES, TaskGraph
from castile.runtime.timeline import Timeline

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Collapsed:
    """A small graph with one task for each class of tasks and one processor for each class of processors.

    Tasks and buffers that it writes out are the representatives', with the whole machine's numbers.

    task_class[T]      the task of `graph` that stands for each task
    proc_class[P]      the processor of `graph` that stands for each processor
    representative     which processor of the whole machine each processor of `graph` is
    """

    graph: TaskGraph
    task_class: np.ndarray
    proc_class: np.ndarray
    representative: np.ndarray


def collapse(graph: TaskGraph, engines: Sequence[int]) -> Collapsed:
    """Merges tasks and processors that no simulation on these engines can tell apart, by colour refinement.

    Tasks of one class have the same cost, kind and private memory, need tasks of the same classes and are the k-th (by
    order) on engines of processors of the same classes; processors of one class serve the same classes in the same
    sequence and hold buffers of the same sizes and users. An engine never serves two tasks of a class: each member
    would stand first of the two on some engine, before a member of greater order. A start depends only on needs and on
    the sequence within each engine, so by induction over the tasks as served all times of a class are equal.

    Colours are 64-bit hashes: two of n that differ are confused with a chance of about n squared / 2**65.
    """
    slots = _Slots(graph, engines)
    tasks = _mixed(graph.cost, graph.kind, graph.private_bytes)
    spread = slots.spans & (graph.private_bytes > 0)
    tasks[spread] = _mixed(tasks[spread], np.flatnonzero(spread))
    tasks, procs = _refined(graph, slots, tasks, np.zeros(graph.num_procs, np.uint64))
    return _small(graph, _numbered(tasks), _numbered(procs))


def expand(collapsed: Collapsed, simulated: Simulated) -> Simulated:
    """What the simulation of the small graph says of the whole one."""
    times, tasks, procs = simulated.timeline, collapsed.task_class, collapsed.proc_class
    timeline = Timeline(np.arange(len(tasks)), times.start[tasks], times.end[tasks])
    return Simulated(
        timeline, simulated.persistent_bytes[procs], simulated.peak_bytes[procs], simulated.busy_seconds[procs]
    )


class _Slots:
    """Every lane of every task: whose it is, on which engine, and how many of its tasks come before it by order."""

    def __init__(self, graph: TaskGraph, engines: Sequence[int]) -> None:
        self.task = np.repeat(np.arange(graph.num_tasks), np.diff(graph.lane_ptr))
        self.proc, self.lane = np.divmod(graph.lanes, NUM_LANES)
        self.engine = self.proc * NUM_LANES + np.asarray(engines)[self.lane]
        order = np.lexsort((graph.order[self.task], self.engine))
        engine, task = self.engine[order], self.task[order]
        first = np.ones(len(order), bool)
        first[1:] = engine[1:] != engine[:-1]
        # Two lanes of a task on one engine count as one.
        fresh = first.copy()
        fresh[1:] |= task[1:] != task[:-1]
        ordinal = np.cumsum(fresh) - 1
        ordinal -= np.repeat(ordinal[first], np.diff(np.append(np.flatnonzero(first), len(order))))
        self.ordinal = np.empty(len(order), np.int64)
        self.ordinal[order] = ordinal
        self.role = _mixed(self.lane, self.engine % NUM_LANES, self.ordinal)
        home = np.zeros(graph.num_tasks, graph.lanes.dtype)
        home[self.task] = self.proc
        self.spans = np.zeros(graph.num_tasks, bool)
        self.spans[self.task[home[self.task] != self.proc]] = True


def _refined(graph: TaskGraph, slots: _Slots, tasks: np.ndarray, procs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Colours of tasks and processors, refined until no neighbourhood tells two of a colour apart."""
    follower = np.repeat(np.arange(graph.num_tasks), np.diff(graph.need_ptr))
    user = np.repeat(np.arange(graph.num_tasks), np.diff(graph.use_ptr))
    classes = 0
    while True:
        needs = _sums(graph.num_tasks, follower, _mixed(tasks[graph.needs]))
        lanes = _sums(graph.num_tasks, slots.task, _mixed(slots.role, procs[slots.proc]))
        tasks = _mixed(tasks, needs, lanes)
        # A first task of -1, for a persistent buffer, finds the zero at the end.
        firsts = np.append(tasks, np.uint64(0))[graph.buffer_first]
        users = _sums(graph.num_buffers, graph.uses, _mixed(tasks[user]))
        buffers = _mixed(graph.buffer_bytes, firsts, users)
        held = _sums(graph.num_procs, graph.buffer_proc, buffers)
        served = _sums(graph.num_procs, slots.proc, _mixed(slots.role, tasks[slots.task]))
        procs = _mixed(procs, held, served)
        former, classes = classes, len(distinct(tasks)) + len(distinct(procs))
        if classes == former:
            return tasks, procs


def _sums(size: int, index: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """The colours summed by index: equal for equal multisets, wherever their members stand."""
    total = np.zeros(size, np.uint64)
    np.add.at(total, index, colours)
    return total


def _mixed(*columns: np.ndarray) -> np.ndarray:
    """A hash of each row, by the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    state = np.full(len(columns[0]), 0x9E3779B97F4A7C15, np.uint64)
    for column in columns:
        state = (state ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


def _numbered(colours: np.ndarray) -> np.ndarray:
    """Colours as numbers 0, 1, ... in the order in which they first occur."""
    _, first, inverse = np.unique(colours, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _small(graph: TaskGraph, task_class: np.ndarray, proc_class: np.ndarray) -> Collapsed:
    """The graph of representatives: the first task of each class, the buffers of the first processor of each class."""
    picked, reps = np.unique(task_class, return_index=True)[1], np.unique(proc_class, return_index=True)[1]
    order = np.full(len(picked), np.iinfo(np.int64).max)
    # By the least order of its members a class stands, on every engine that it shares, where its members stand.
    np.minimum.at(order, task_class, graph.order)
    owner, lane = _rows(graph.lane_ptr, graph.lanes, picked)
    lane_ptr, lanes = compressed(owner, proc_class[lane // NUM_LANES] * NUM_LANES + lane % NUM_LANES, len(picked))
    owner, needs = _rows(graph.need_ptr, graph.needs, picked)
    need_ptr, needs = compressed(owner, task_class[needs], len(picked))
    kept = np.flatnonzero(np.isin(graph.buffer_proc, reps))
    number = np.full(graph.num_buffers, -1)
    number[kept] = np.arange(len(kept))
    user, ours = np.repeat(task_class, np.diff(graph.use_ptr)), number[graph.uses] >= 0
    use_ptr, uses = compressed(user[ours], number[graph.uses[ours]], len(picked))
    small = TaskGraph(
        kind=graph.kind[picked], order=order, cost=graph.cost[picked], cost_keys=graph.cost_keys,
        lane_ptr=lane_ptr, lanes=lanes, need_ptr=need_ptr, needs=needs, use_ptr=use_ptr, uses=uses,
        buffer_proc=proc_class[graph.buffer_proc[kept]].astype(np.int32), buffer_bytes=graph.buffer_bytes[kept],
        buffer_first=np.append(task_class, -1)[graph.buffer_first[kept]].astype(np.int32),
        private_bytes=graph.private_bytes[picked], num_procs=len(reps),
        tasks=_Picked(graph.tasks, picked), buffers=_Picked(graph.buffers, kept),
    )  # fmt: skip
    return Collapsed(small, task_class, proc_class, reps)


def _rows(ptr: np.ndarray, values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entries of some rows of a flat table, each with its row's place among them."""
    counts = (ptr[1:] - ptr[:-1])[rows]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(np.arange(len(rows)), counts), values[np.repeat(ptr[:-1][rows], counts) + within]


def distinct(values: np.ndarray) -> np.ndarray:
    """The numbers ascending, each once: by a sort, as numpy's `unique` hashes, ten times slower where most differ."""
    values = np.sort(values)
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


class _Picked(Sequence[T], Generic[T]):
    """Some items of a sequence, fetched when asked for."""

    def __init__(self, items: Sequence[T], picked: np.ndarray) -> None:
        self._items, self._picked = items, picked

    def __len__(self) -> int:
        return len(self._picked)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return _Picked(self._items, self._picked[index])
        return self._items[int(self._picked[index])]

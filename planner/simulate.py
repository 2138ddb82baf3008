"""Simulation: when each task of a graph would run, and how much memory that takes.

It does not know where durations come from, nor what the tasks do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from castile.runtime.task import NUM_LANES, TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

FORMS = ("auto", "numba", "plain")


@dataclass(frozen=True, eq=False)
class Simulated:
    """What a simulation says of a graph of T tasks on P processors.

    timeline              start and end of every task, in picoseconds
    persistent_bytes[P]   buffers that live through the step
    peak_bytes[P]         those, and the largest sum of transient buffers and private memory alive at one time
    busy_seconds[P]       how long each processor's compute lane works
    """

    timeline: Timeline
    persistent_bytes: np.ndarray
    peak_bytes: np.ndarray
    busy_seconds: np.ndarray

    @property
    def seconds(self) -> float:
        return self.timeline.seconds

    @property
    def num_tasks(self) -> int:
        return len(self.timeline.task)


def simulate(graph: TaskGraph, durations: np.ndarray, engines: Sequence[int], form: str = "auto") -> Simulated:
    """The timeline and the memory of one step, exactly, in integers.

    durations[c] are the picoseconds of cost key c; a task takes at least 1. engines[lane] is the engine of its
    processor that serves a lane (`Machine.engines`). A task is ready when all that it needs has ended; tasks are served
    by (ready, order), each from the maximum of its ready time and the previous ends on all its engines: the full
    simulation of FlexFlow (Jia, Zaharia, Aiken, MLSys 2019, algorithm 1), with tasks that occupy several engines.

    A transient buffer lives from the start of its first task to the last end of a task that uses it, private memory as
    long as its task; what ends at a time has gone before anything begins at that time. Every task lies on the processors
    of the buffers that it uses. `form` "numba" compiles the body, "plain" interprets it, "auto" compiles it where numba
    is installed. Raises ValueError for an unknown form.
    """
    if form not in FORMS:
        raise ValueError(f"simulator form {form!r} is unknown; choose one of {', '.join(FORMS)}")
    assert len(durations) == len(graph.cost_keys) and len(engines) == NUM_LANES
    plain = form == "plain" or (form == "auto" and find_spec("numba") is None)
    serve, sweep = (_serve, _sweep) if plain else (_compiled(_serve), _compiled(_sweep))
    order, cost = _int64(graph.order), _int32(graph.cost)
    lane_ptr, use_ptr, uses = _int32(graph.lane_ptr), _int32(graph.use_ptr), _int32(graph.uses)
    buffer_proc, buffer_bytes = _int32(graph.buffer_proc), _int64(graph.buffer_bytes)
    engine_of = _int32(engines)
    num_engines = int(engine_of.max()) + 1
    proc, lane = np.divmod(_int32(graph.lanes), np.int32(NUM_LANES))
    engine = proc * np.int32(num_engines) + engine_of[lane]
    lasts = np.maximum(_int64(durations)[cost], 1)
    served, start, end = serve(
        order, lasts, lane_ptr, engine, _int32(graph.need_ptr), _int32(graph.needs), graph.num_procs * num_engines
    )
    assert len(served) == graph.num_tasks, "the task graph has a cycle"
    persistent, peak = sweep(
        served, start, end, lane_ptr, proc, engine, use_ptr, uses, buffer_proc, buffer_bytes,
        _int32(graph.buffer_first), _int64(graph.private_bytes), graph.num_procs, num_engines,
    )  # fmt: skip
    computing = np.flatnonzero(lane == 0)
    task = np.repeat(np.arange(graph.num_tasks), np.diff(lane_ptr))[computing]
    busy = np.bincount(proc[computing], weights=lasts[task], minlength=graph.num_procs) / PICOSECONDS
    timeline = Timeline(np.arange(graph.num_tasks), start, end)
    return Simulated(timeline, persistent, peak, busy)


def _int32(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)


def _int64(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int64)


@cache
def _compiled(body: Callable[..., Any]) -> Callable[..., Any]:
    # Importing numba costs a tenth of a second, which only those pay who simulate.
    import numba

    compiled: Callable[..., Any] = numba.njit(cache=True)(body)
    return compiled


def _serve(order, lasts, lane_ptr, engine, need_ptr, needs, num_engines):  # type: ignore[no-untyped-def]
    """Serves all tasks; returns them in the order served, and every task's start and end."""
    num_tasks = len(lasts)
    # Followers of each task, by counting sort of its needs turned round.
    follow_ptr = np.zeros(num_tasks + 2, np.int32)
    for k in range(len(needs)):
        follow_ptr[needs[k] + 2] += 1
    for t in range(num_tasks):
        follow_ptr[t + 2] += follow_ptr[t + 1]
    follows = np.empty(len(needs), np.int32)
    waits = np.empty(num_tasks, np.int32)
    for t in range(num_tasks):
        waits[t] = need_ptr[t + 1] - need_ptr[t]
        for k in range(need_ptr[t], need_ptr[t + 1]):
            follows[follow_ptr[needs[k] + 1]] = t
            follow_ptr[needs[k] + 1] += 1
    start = np.zeros(num_tasks, np.int64)
    end = np.empty(num_tasks, np.int64)
    free = np.zeros(num_engines, np.int64)
    served = np.empty(num_tasks, np.int32)
    num_served = 0
    # A binary heap over (ready, order); until a task is served, start holds its ready time.
    key = np.empty(num_tasks + 1, np.int64)
    heap = np.empty(num_tasks + 1, np.int32)
    size = 0
    fresh = np.empty(num_tasks, np.int32)
    num_fresh = 0
    for t in range(num_tasks):
        if waits[t] == 0:
            fresh[num_fresh] = t
            num_fresh += 1
    while True:
        for f in range(num_fresh):
            t = fresh[f]
            ready, hole = start[t], size
            size += 1
            while hole > 0:
                up = (hole - 1) >> 1
                if key[up] < ready or (key[up] == ready and order[heap[up]] < order[t]):
                    break
                key[hole], heap[hole], hole = key[up], heap[up], up
            key[hole], heap[hole] = ready, t
        if size == 0:
            return served[:num_served], start, end
        task, begin = heap[0], key[0]
        size -= 1
        ready, t, hole = key[size], heap[size], 0
        while True:
            low = 2 * hole + 1
            if low >= size:
                break
            if low + 1 < size and (
                key[low + 1] < key[low] or (key[low + 1] == key[low] and order[heap[low + 1]] < order[heap[low]])
            ):
                low += 1
            if ready < key[low] or (ready == key[low] and order[t] < order[heap[low]]):
                break
            key[hole], heap[hole], hole = key[low], heap[low], low
        key[hole], heap[hole] = ready, t
        for k in range(lane_ptr[task], lane_ptr[task + 1]):
            begin = max(begin, free[engine[k]])
        done = begin + lasts[task]
        for k in range(lane_ptr[task], lane_ptr[task + 1]):
            free[engine[k]] = done
        start[task], end[task] = begin, done
        served[num_served] = task
        num_served += 1
        num_fresh = 0
        for k in range(follow_ptr[task], follow_ptr[task + 1]):
            t = follows[k]
            start[t] = max(start[t], done)
            waits[t] -= 1
            if waits[t] == 0:
                fresh[num_fresh] = t
                num_fresh += 1


def _sweep(  # type: ignore[no-untyped-def]
    served, start, end, lane_ptr, proc, engine, use_ptr, uses, buffer_proc, buffer_bytes, buffer_first, private_bytes,
    num_procs, num_engines,
):  # fmt: skip
    """Bytes that live through the step, and the most that live at one time, of every processor."""
    num_slots, num_buffers = len(proc), len(buffer_proc)
    # What begins with a task and what ends with it is booked on its first slot (task, lane) of that processor.
    begins = np.zeros(num_slots, np.int64)
    ends = np.zeros(num_slots, np.int64)
    last_end = np.full(num_buffers, -1, np.int64)
    last_slot = np.zeros(num_buffers, np.int32)
    slot_of = np.full(num_procs, -1, np.int32)
    persistent = np.zeros(num_procs, np.int64)
    unborn = 0
    for b in range(num_buffers):
        if buffer_first[b] < 0:
            persistent[buffer_proc[b]] += buffer_bytes[b]
        else:
            unborn += 1
    for t in range(len(served)):
        lo, hi = lane_ptr[t], lane_ptr[t + 1]
        for k in range(hi - 1, lo - 1, -1):
            slot_of[proc[k]] = k
        for k in range(lo, hi):
            if slot_of[proc[k]] == k:
                begins[k] += private_bytes[t]
                ends[k] += private_bytes[t]
        for u in range(use_ptr[t], use_ptr[t + 1]):
            b = uses[u]
            if buffer_first[b] < 0:
                continue
            k = slot_of[buffer_proc[b]]
            assert lo <= k < hi
            if buffer_first[b] == t:
                begins[k] += buffer_bytes[b]
                unborn -= 1
            if end[t] > last_end[b]:
                last_end[b], last_slot[b] = end[t], k
    assert unborn == 0
    for b in range(num_buffers):
        if buffer_first[b] >= 0:
            ends[last_slot[b]] += buffer_bytes[b]
    # Each engine's slots in the order served: starts and ends ascend, and no task starts before the former ends.
    queue_ptr = np.zeros(num_procs * num_engines + 1, np.int32)
    for k in range(num_slots):
        if begins[k] != 0 or ends[k] != 0:
            queue_ptr[engine[k] + 1] += 1
    for e in range(num_procs * num_engines):
        queue_ptr[e + 1] += queue_ptr[e]
    fill = queue_ptr[:-1].copy()
    when = np.empty(2 * queue_ptr[-1] + 1, np.int64)
    delta = np.empty(2 * queue_ptr[-1] + 1, np.int64)
    for i in range(len(served)):
        t = served[i]
        for k in range(lane_ptr[t], lane_ptr[t + 1]):
            if begins[k] != 0 or ends[k] != 0:
                f = 2 * fill[engine[k]]
                fill[engine[k]] += 1
                # Twice the time, odd for a beginning: at equal times ends come first.
                when[f], delta[f] = 2 * start[t] + 1, begins[k]
                when[f + 1], delta[f + 1] = 2 * end[t], -ends[k]
    peak = persistent.copy()
    head = np.empty(num_engines, np.int64)
    for p in range(num_procs):
        live = persistent[p]
        base = p * num_engines
        for e in range(num_engines):
            head[e] = 2 * queue_ptr[base + e]
        while True:
            soonest, least = -1, np.int64(0)
            for e in range(num_engines):
                if head[e] < 2 * queue_ptr[base + e + 1] and (soonest < 0 or when[head[e]] < least):
                    soonest, least = e, when[head[e]]
            if soonest < 0:
                break
            live += delta[head[soonest]]
            head[soonest] += 1
            peak[p] = max(peak[p], live)
    return persistent, peak

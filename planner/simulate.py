"""Simulation: when each task of a graph would run, and how much memory that takes.

It does not know where durations come from, nor what the tasks do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, overload

import numpy as np

from castile.runtime.compiled import can_compile, compiled
from castile.runtime.task import NUM_LANES, Lane, TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

FORMS = ("auto", "numba", "plain")
COMPUTE = int(Lane.COMPUTE)
NEVER = np.iinfo(np.int64).max


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


@overload
def simulate(graph: TaskGraph, durations: np.ndarray, engines: Sequence[int], form: str = "auto") -> Simulated: ...


@overload
def simulate(
    graph: TaskGraph, durations: np.ndarray, engines: Sequence[int], form: str = "auto", *, limit: float
) -> Simulated | None: ...


def simulate(
    graph: TaskGraph, durations: np.ndarray, engines: Sequence[int], form: str = "auto", *, limit: float = inf
) -> Simulated | None:
    """The timeline and the memory of one step, exactly, in integers.

    durations[c] are the picoseconds of cost key c; a task takes at least 1. engines[lane] is the engine of its
    processor that serves a lane (`Machine.engines`). A task is ready when all that it needs has ended; tasks are served
    by (ready, order), each from the maximum of its ready time and the previous ends on all its engines: the full
    simulation of FlexFlow (Jia, Zaharia, Aiken, MLSys 2019, algorithm 1), with tasks that occupy several engines.

    A transient buffer lives from the start of its first task to the last end of a task that uses it, private memory as
    long as its task; what ends at a time has gone before anything begins at that time. Every task lies on the
    processors of the buffers that it uses.

    None where the step takes more than `limit` seconds, which is found out as soon as the longest chain of tasks that
    begins with the one just served, or all that one of its engines has still to do, cannot end in time. `form` "numba"
    compiles the body, "plain" interprets it, "auto" compiles it where numba is installed. Raises ValueError for an
    unknown form, and for "numba" where it is missing.
    """
    if form not in FORMS:
        raise ValueError(f"simulator form {form!r} is unknown; choose one of {', '.join(FORMS)}")
    if form == "numba" and not can_compile():
        raise ValueError("simulator form 'numba' needs numba, which is not installed; choose 'auto' or 'plain'")
    assert len(durations) == len(graph.cost_keys) and len(engines) == NUM_LANES
    bodies: tuple[Callable[..., Any], ...] = (_follow, _foresee, _serve, _book, _sweep)
    follow, foresee, serve, book, sweep = bodies if form == "plain" else map(compiled, bodies)
    num_engines = max(engines) + 1
    engine = _int32(np.arange(graph.num_procs)[:, None] * num_engines + np.asarray(engines)).ravel()
    lane_ptr, lanes, need_ptr = _int32(graph.lane_ptr), _int32(graph.lanes), _int32(graph.need_ptr)
    needs, cost, lasts = _int32(graph.needs), _int32(graph.cost), _int64(durations)
    follow_ptr, follows = follow(need_ptr, needs)
    most = latest(limit)
    tail, load = np.zeros(graph.num_tasks, np.int64), np.zeros(engine.max(initial=-1) + 1, np.int64)
    if most < NEVER:
        tail, load = foresee(cost, lasts, lane_ptr, lanes, engine, need_ptr, needs, follow_ptr)
        if max(tail.max(initial=0), load.max(initial=0)) > most:
            return None
    served, start, end, busy = serve(
        _int64(graph.order), cost, lasts, lane_ptr, lanes, engine, need_ptr, follow_ptr, follows, most, tail, load
    )  # fmt: skip
    if most < NEVER and len(served) < graph.num_tasks:
        return None
    assert len(served) == graph.num_tasks, "the task graph has a cycle"
    persistent, queue_ptr, queue, delta = book(
        served, end, lane_ptr, lanes, engine, _int32(graph.use_ptr), _int32(graph.uses),
        _int32(graph.buffer_proc), _int64(graph.buffer_bytes), _int32(graph.buffer_first), _int64(graph.private_bytes),
    )  # fmt: skip
    peak = sweep(persistent, queue_ptr, queue, delta, start, end)
    timeline = Timeline(np.arange(graph.num_tasks), start, end)
    return Simulated(timeline, persistent, peak, busy / PICOSECONDS)


def latest(limit: float) -> int:
    """The most picoseconds that a step may take whose seconds shall not exceed `limit`; NEVER without a limit."""
    if limit * PICOSECONDS >= NEVER:
        return NEVER
    # Rounding may have moved the product, and a timeline's seconds are rounded too.
    found = int(limit * PICOSECONDS)
    while (found + 1) / PICOSECONDS <= limit:
        found += 1
    while found / PICOSECONDS > limit:
        found -= 1
    return found


def _int32(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)


def _int64(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int64)


def _follow(need_ptr, needs):  # type: ignore[no-untyped-def]
    """The followers of each task: a counting sort of the needs turned round."""
    num_tasks = len(need_ptr) - 1
    follow_ptr = np.zeros(num_tasks + 2, np.int32)
    for k in range(len(needs)):
        follow_ptr[needs[k] + 2] += 1
    for t in range(num_tasks):
        follow_ptr[t + 2] += follow_ptr[t + 1]
    follows = np.empty(len(needs), np.int32)
    for t in range(num_tasks):
        for k in range(need_ptr[t], need_ptr[t + 1]):
            follows[follow_ptr[needs[k] + 1]] = t
            follow_ptr[needs[k] + 1] += 1
    return follow_ptr, follows


def _foresee(  # type: ignore[no-untyped-def]
    cost, durations, lane_ptr, lanes, engine, need_ptr, needs, follow_ptr
):
    """Of each task how long the longest chain is that begins with it, and of each engine how long it works."""
    num_tasks = len(cost)
    tail, load = np.zeros(num_tasks, np.int64), np.zeros(engine.max() + 1, np.int64)
    counted = np.full(engine.max() + 1, -1, np.int32)
    left = follow_ptr[1 : num_tasks + 1] - follow_ptr[:num_tasks]
    stack, height = np.empty(num_tasks, np.int32), 0
    for t in range(num_tasks):
        if left[t] == 0:
            stack[height] = t
            height += 1
        for k in range(lane_ptr[t], lane_ptr[t + 1]):
            e = engine[lanes[k]]
            if counted[e] != t:
                counted[e] = t
                load[e] += max(durations[cost[t]], 1)
    while height > 0:
        height -= 1
        t = stack[height]
        tail[t] += max(durations[cost[t]], 1)
        for k in range(need_ptr[t], need_ptr[t + 1]):
            n = needs[k]
            tail[n] = max(tail[n], tail[t])
            left[n] -= 1
            if left[n] == 0:
                stack[height] = n
                height += 1
    return tail, load


def _serve(  # type: ignore[no-untyped-def]
    order, cost, durations, lane_ptr, lanes, engine, need_ptr, follow_ptr, follows, limit, tail, load
):
    """Serves all tasks: in which order, every task's start and end, and how long each compute lane works.

    With a limit it stops short as soon as a task's chain or an engine's load cannot end in time.
    """
    num_tasks = len(order)
    waits = need_ptr[1:] - need_ptr[:-1]
    start = np.zeros(num_tasks, np.int64)
    end = np.empty(num_tasks, np.int64)
    free = np.zeros(engine.max() + 1, np.int64)
    busy = np.zeros(len(engine) // NUM_LANES, np.int64)
    served = np.empty(num_tasks, np.int32)
    # A binary heap over (ready, order); until a task is served, start holds its ready time.
    key, rank = np.empty(num_tasks + 1, np.int64), np.empty(num_tasks + 1, np.int64)
    heap = np.empty(num_tasks + 1, np.int32)
    fresh, roots = np.empty(num_tasks + 1, np.int32), np.flatnonzero(waits == 0)
    fresh[: len(roots)] = roots
    num_fresh, num_served, size, vacant = len(roots), 0, 0, False
    while True:
        # The top is vacant once its task is served: a task that has become ready fills it, else the last entry does.
        if num_fresh == 0:
            size -= 1
            if size <= 0:
                return served[:num_served], start, end, busy
            fresh[0], num_fresh = heap[size], 1
        for f in range(num_fresh):
            t = fresh[f]
            ready, place = start[t], order[t]
            if vacant:
                # The hole sinks to a leaf and the entry rises from there, seldom far; choosing the lesser child without
                # a jump is what makes this fast.
                hole, low, vacant = 0, 1, False
                key[size] = NEVER
                while low < size:
                    low += (key[low + 1] < key[low]) | ((key[low + 1] == key[low]) & (rank[low + 1] < rank[low]))
                    key[hole], rank[hole], heap[hole], hole = key[low], rank[low], heap[low], low
                    low = 2 * hole + 1
            else:
                hole = size
                size += 1
            while hole > 0:
                up = (hole - 1) >> 1
                if key[up] < ready or (key[up] == ready and rank[up] < place):
                    break
                key[hole], rank[hole], heap[hole], hole = key[up], rank[up], heap[up], up
            key[hole], rank[hole], heap[hole] = ready, place, t
        task, begin, vacant = heap[0], key[0], True
        for k in range(lane_ptr[task], lane_ptr[task + 1]):
            begin = max(begin, free[engine[lanes[k]]])
        lasts = max(durations[cost[task]], 1)
        done = begin + lasts
        late = tail[task] > limit - begin
        for k in range(lane_ptr[task], lane_ptr[task + 1]):
            e = engine[lanes[k]]
            # Two lanes of a task on one engine count once: the first of them makes it busy.
            if free[e] < done:
                late |= load[e] > limit - begin
                load[e], free[e] = load[e] - lasts, done
            if lanes[k] % NUM_LANES == COMPUTE:
                busy[lanes[k] // NUM_LANES] += lasts
        if late:
            return served[:num_served], start, end, busy
        start[task], end[task], served[num_served] = begin, done, task
        num_served += 1
        num_fresh = 0
        for k in range(follow_ptr[task], follow_ptr[task + 1]):
            t = follows[k]
            start[t] = max(start[t], done)
            waits[t] -= 1
            if waits[t] == 0:
                fresh[num_fresh] = t
                num_fresh += 1


def _book(  # type: ignore[no-untyped-def]
    served, end, lane_ptr, lanes, engine, use_ptr, uses, buffer_proc, buffer_bytes, buffer_first, private_bytes
):
    """What comes and goes: bytes that live through the step, and the tasks of each engine in the order served.

    Task queue[i] for queue_ptr[e] <= i < queue_ptr[e + 1] brings delta[2 * i] bytes and takes -delta[2 * i + 1] away.
    """
    num_slots, num_buffers, num_procs = len(lanes), len(buffer_proc), len(engine) // NUM_LANES
    queue_ptr = np.zeros(engine.max() + 2, np.int32)
    for k in range(num_slots):
        queue_ptr[engine[lanes[k]] + 1] += 1
    for e in range(len(queue_ptr) - 1):
        queue_ptr[e + 1] += queue_ptr[e]
    fill = queue_ptr[:-1].copy()
    queue, place = np.empty(num_slots, np.int32), np.empty(num_slots, np.int32)
    delta = np.zeros(2 * num_slots, np.int64)
    for i in range(len(served)):
        t = served[i]
        for k in range(lane_ptr[t], lane_ptr[t + 1]):
            e = engine[lanes[k]]
            queue[fill[e]], place[k] = t, 2 * fill[e]
            fill[e] += 1
    # What begins with a task and what ends with it is booked on its first slot (task, lane) of that processor.
    last_end = np.full(num_buffers, -1, np.int64)
    last_place = np.empty(num_buffers, np.int32)
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
            slot_of[lanes[k] // NUM_LANES] = k
        if private_bytes[t] > 0:
            for k in range(lo, hi):
                if slot_of[lanes[k] // NUM_LANES] == k:
                    delta[place[k]] += private_bytes[t]
                    delta[place[k] + 1] -= private_bytes[t]
        for u in range(use_ptr[t], use_ptr[t + 1]):
            b = uses[u]
            if buffer_first[b] < 0:
                continue
            k = slot_of[buffer_proc[b]]
            assert lo <= k < hi
            if buffer_first[b] == t:
                delta[place[k]] += buffer_bytes[b]
                unborn -= 1
            if end[t] > last_end[b]:
                last_end[b], last_place[b] = end[t], place[k] + 1
    assert unborn == 0
    for b in range(num_buffers):
        if buffer_first[b] >= 0:
            delta[last_place[b]] -= buffer_bytes[b]
    return persistent, queue_ptr, queue, delta


def _sweep(persistent, queue_ptr, queue, delta, start, end):  # type: ignore[no-untyped-def]
    """The most bytes that live at one time on every processor: a merge of its engines' queues.

    On an engine starts and ends ascend and no task starts before the former ends.
    """
    peak = persistent.copy()
    num_engines = (len(queue_ptr) - 1) // len(peak)
    head, tail = np.empty(num_engines, np.int64), np.empty(num_engines, np.int64)
    soon = np.empty(num_engines, np.int64)
    for p in range(len(peak)):
        live, num_open = persistent[p], 0
        for e in range(p * num_engines, (p + 1) * num_engines):
            head[num_open], tail[num_open], soon[num_open] = 2 * queue_ptr[e] - 1, 2 * queue_ptr[e + 1], -1
            num_open += 1
        while num_open > 0:
            q = 0
            for e in range(1, num_open):
                if soon[e] < soon[q]:
                    q = e
            h = head[q]
            if soon[q] >= 0:
                live += delta[h]
                peak[p] = max(peak[p], live)
            h += 1
            while h < tail[q] and delta[h] == 0:
                h += 1
            if h < tail[q]:
                # Twice the time, odd for a beginning: at equal times ends come first.
                head[q], soon[q] = h, 2 * end[queue[h >> 1]] if h & 1 else 2 * start[queue[h >> 1]] + 1
            else:
                num_open -= 1
                head[q], tail[q], soon[q] = head[num_open], tail[num_open], soon[num_open]
    return peak

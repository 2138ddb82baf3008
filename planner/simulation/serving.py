"""Serving: the event loop of the simulation: the order in which engines serve a graph's tasks, and when each runs.

Its functions are compiled where numba is installed, and allocate no array. It does not know where tasks come from, nor
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from castile.planner.simulation.agenda import opened, put, take, without_arrays
from castile.planner.simulation.agenda import room as room_for

# The order of a task before which serving stops.
STOP = np.iinfo(np.int64).min


class Tasks(NamedTuple):
    """A task graph in flat arrays, as in `TaskGraph`; engine[lane] serves a lane, durations[cost] are picoseconds.

    follow_ptr, follows   the followers of each task, which need it, in CSR form; follow_ptr has T + 2 entries
    """

    order: np.ndarray
    cost: np.ndarray
    durations: np.ndarray
    lane_ptr: np.ndarray
    lanes: np.ndarray
    engine: np.ndarray
    need_ptr: np.ndarray
    needs: np.ndarray
    follow_ptr: np.ndarray
    follows: np.ndarray


class Schedule(NamedTuple):
    """How engines served a graph's T tasks, which fill N slots (task, lane).

    start, end         int64[T]
    queue, queue_ptr   the tasks of each engine in the order in which they were served, in CSR form
    place              uint32[N], the position in `queue` of each slot's task
    busy               int64[lanes], picoseconds that each lane works
    """

    start: np.ndarray
    end: np.ndarray
    queue: np.ndarray
    queue_ptr: np.ndarray
    place: np.ndarray
    busy: np.ndarray


def new_schedule(tasks: Tasks, num_engines: int, follow: Callable[..., Any]) -> Schedule:
    """Allocate it, with what is known before serving: `busy` and `queue_ptr`."""
    busy, queue_ptr = np.zeros(len(tasks.engine), np.int64), np.zeros(num_engines + 1, np.int32)
    follow(tasks, busy, queue_ptr[1:])
    np.cumsum(queue_ptr, out=queue_ptr)
    start, end = np.zeros(len(tasks.order), np.int64), np.empty(len(tasks.order), np.int64)
    queue, place = np.empty((2, len(tasks.lanes)), np.uint32)
    return Schedule(start, end, queue, queue_ptr, place, busy)


class Remaining(NamedTuple):
    """The state of serving at a time: which tasks are left.

    base        that time
    waits       int32[T], how many unserved tasks each task still needs; -1 for served tasks
    free        int64[E], when each engine is free
    queue_end   uint32[E], the position in `queue` of the next task of each engine
    """

    base: int
    waits: np.ndarray
    free: np.ndarray
    queue_end: np.ndarray


def nothing_served(tasks: Tasks, served: Schedule) -> Remaining:
    """The state before anything is served."""
    begin = served.queue_ptr[:-1]
    return Remaining(0, np.diff(tasks.need_ptr.view(np.int32)), np.zeros(len(begin), np.int64), begin.copy())


def serve_ready(tasks: Tasks, served: Schedule, left: Remaining, form: str = "auto") -> int:
    """Serve the tasks that are left as they get ready, up to a task whose order is STOP.

    Returns the time at which that task is ready, or -1 if all tasks were served. For tasks that are not served,
    `served.start` is a lower bound of their ready time.
    """
    through = serve if form == "plain" else compiled_bodies()[1]
    room, length = room_for(len(tasks.order)), int(served.busy.max(initial=0))
    until: int = through(
        tasks, length, room, *left[:3], served.start, served.end, served.queue, left.queue_end, served.place
    )
    return until


def follow(tasks, busy, count):  # type: ignore[no-untyped-def]
    """Fill in the followers of each task, by a counting sort of the reversed needs; `busy`; and in `count` the number
    of slots (task, lane) of each engine.
    """
    follow_ptr, follows, num_tasks = tasks.follow_ptr, tasks.follows, len(tasks.order)
    for k in range(len(tasks.needs)):
        follow_ptr[tasks.needs[k] + 2] += 1
    for t in range(num_tasks):
        follow_ptr[t + 2] += follow_ptr[t + 1]
    for t in range(num_tasks):
        lasts = max(tasks.durations[tasks.cost[t]], 1)
        for k in range(tasks.lane_ptr[t], tasks.lane_ptr[t + 1]):
            busy[tasks.lanes[k]] += lasts
            count[tasks.engine[tasks.lanes[k]]] += 1
        for k in range(tasks.need_ptr[t], tasks.need_ptr[t + 1]):
            follows[follow_ptr[tasks.needs[k] + 1]] = t
            follow_ptr[tasks.needs[k] + 1] += 1


def serve(tasks, longest, agenda, base, waits, free, start, end, queue, queue_end, place):  # type: ignore[no-untyped-def]
    """The loop of `serve_ready`.

    longest                        an estimate of the step's time; any is correct, a good one is fast
    base, waits, free, queue_end   as in `Remaining`
    start                          until a task is served: a lower bound of its ready time
    """
    first, last, chain, row, heap, fresh = agenda
    num_fresh = 0
    for t in range(len(tasks.order)):
        if waits[t] == 0:
            fresh[num_fresh] = t
            num_fresh += 1
    size, head, stop, bucket, width = 0, 0, 0, 0, 0
    while longest >> width > len(first):
        width += 1
    while True:
        size, stop = put(
            num_fresh, size, head, stop, bucket, base, width, first, last, chain, row, heap, fresh, start, tasks.order
        )
        if head == stop and size == 0:
            num_fresh, bucket, base, width = opened(bucket, base, width, first, chain, fresh, start)
            if num_fresh == 0:
                return -1
            continue
        task, head, size = take(size, head, stop, row, heap, start, tasks.order)
        if tasks.order[task] == STOP:
            return start[task]
        begin = beginning(tasks, task, start[task], free)
        done = begin + max(tasks.durations[tasks.cost[task]], 1)
        occupy(tasks, task, done, free, queue, queue_end, place)
        start[task], end[task] = begin, done
        num_fresh = release(tasks, task, done, start, waits, fresh, 0)


def beginning(tasks, task, ready, free):  # type: ignore[no-untyped-def]
    """When a task that gets ready at a time begins: once all its engines are free."""
    for k in range(tasks.lane_ptr[task], tasks.lane_ptr[task + 1]):
        ready = max(ready, free[tasks.engine[tasks.lanes[k]]])
    return ready


def occupy(tasks, task, done, free, queue, queue_end, place):  # type: ignore[no-untyped-def]
    """Put a task into the queues of its engines, which are busy until it is done."""
    for k in range(tasks.lane_ptr[task], tasks.lane_ptr[task + 1]):
        e = tasks.engine[tasks.lanes[k]]
        free[e], place[k], queue[queue_end[e]] = done, queue_end[e], task
        queue_end[e] += 1


def release(tasks, task, done, ready, waits, fresh, num_fresh):  # type: ignore[no-untyped-def]
    """Tell a task's followers that it is done. Those that wait for nothing else are appended to the `num_fresh` fresh
    tasks; returns their new number.
    """
    for k in range(tasks.follow_ptr[task], tasks.follow_ptr[task + 1]):
        t = tasks.follows[k]
        ready[t] = max(ready[t], done)
        waits[t] -= 1
        if waits[t] == 0:
            fresh[num_fresh] = t
            num_fresh += 1
    return num_fresh


BODIES, PARTS = (follow, serve), (beginning, occupy, release)


@cache
def compiled_bodies() -> tuple[Callable[..., Any], ...]:
    """The loops, compiled where numba is installed."""
    return without_arrays(BODIES, PARTS)

"""Serving: in which order the engines take a graph's tasks, and when each runs.

Its functions are compiled where they can be, and make no array. It does not know where tasks come from, nor memory.
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

    follow_ptr, follows   who needs each task; of T tasks follow_ptr has T + 2 entries
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


class Served(NamedTuple):
    """How the engines served a graph's T tasks, which fill N slots (task, lane).

    start, end          int64[T]
    queue, queue_ptr    the tasks of each engine as they were served, from where on
    place               uint32[N], where in the queue the task of each slot stands
    busy                int64[lanes], how long each lane works
    """

    start: np.ndarray
    end: np.ndarray
    queue: np.ndarray
    queue_ptr: np.ndarray
    place: np.ndarray
    busy: np.ndarray


def to_serve(tasks: Tasks, num_engines: int, follow: Callable[..., Any]) -> Served:
    """Room for that, and what is known before: how long lanes work, and where each engine's queue begins."""
    busy, queue_ptr = np.zeros(len(tasks.engine), np.int64), np.zeros(num_engines + 1, np.int32)
    follow(tasks, busy, queue_ptr[1:])
    np.cumsum(queue_ptr, out=queue_ptr)
    start, end = np.zeros(len(tasks.order), np.int64), np.empty(len(tasks.order), np.int64)
    queue, place = np.empty((2, len(tasks.lanes)), np.uint32)
    return Served(start, end, queue, queue_ptr, place, busy)


class Left(NamedTuple):
    """What is left to be served from some time on.

    base        that time
    waits       int32[T], for how many that are left each task waits, -1 of those that are done
    free        int64[E], when each engine is done with what it has served
    queue_end   uint32[E], where the next that it serves comes to stand
    """

    base: int
    waits: np.ndarray
    free: np.ndarray
    queue_end: np.ndarray


def all_left(tasks: Tasks, served: Served) -> Left:
    """Before anything is served."""
    begin = served.queue_ptr[:-1]
    return Left(0, np.diff(tasks.need_ptr.view(np.int32)), np.zeros(len(begin), np.int64), begin.copy())


def serve_ready(tasks: Tasks, served: Served, left: Left, form: str = "auto") -> int:
    """Serves what is left as it gets ready, up to a task whose order is STOP; gives when that is ready, -1 where all
    is served. Of what is not served `served.start` says since when it is ready as far as is known.
    """
    through = serve if form == "plain" else compiled_bodies()[1]
    room, length = room_for(len(tasks.order)), int(served.busy.max(initial=0))
    until: int = through(
        tasks, length, room, *left[:3], served.start, served.end, served.queue, left.queue_end, served.place
    )
    return until


def follow(tasks, busy, count):  # type: ignore[no-untyped-def]
    """The followers of each task, by a counting sort of the needs turned round.

    Also how long each lane works, and how many slots (task, lane) each engine has.
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
    """What `serve_ready` does.

    base, waits, free, queue_end   of what is `Left`
    start                          until a task is served when it is ready, as far as is known

    The tasks of each engine stand in its part of the queue as they are served, up to queue_end[engine], which at first
    is where that part begins; place[k] is where slot (task, lane) number k stands. Any time of a step will do as
    `longest`; the nearer to all of it, the sooner this ends.
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
    """When a task that is ready from some time on begins: once all its engines are free."""
    for k in range(tasks.lane_ptr[task], tasks.lane_ptr[task + 1]):
        ready = max(ready, free[tasks.engine[tasks.lanes[k]]])
    return ready


def occupy(tasks, task, done, free, queue, queue_end, place):  # type: ignore[no-untyped-def]
    """Its engines are free when it is done, and it stands in their queues."""
    for k in range(tasks.lane_ptr[task], tasks.lane_ptr[task + 1]):
        e = tasks.engine[tasks.lanes[k]]
        free[e], place[k], queue[queue_end[e]] = done, queue_end[e], task
        queue_end[e] += 1


def release(tasks, task, done, ready, waits, fresh, num_fresh):  # type: ignore[no-untyped-def]
    """What follows it waits for one less, and is entered behind so many fresh ones where it waits for none; gives how
    many these are then.
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
    """The same compiled, where numba is installed."""
    return without_arrays(BODIES, PARTS)

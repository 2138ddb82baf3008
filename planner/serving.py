"""Serving: in which order the engines take a graph's tasks, and when each runs.

Its functions are compiled where they can be, and make no array. It does not know where tasks come from, nor memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from castile.planner.agenda import NEVER, opened, put, take, without_arrays


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


class Ahead(NamedTuple):
    """What is still to come at least, by which a step can be seen to be late.

    tail[T]   how long the longest chain lasts that begins with a task
    load[E]   how long each engine has still to work
    """

    tail: np.ndarray
    load: np.ndarray


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


def foresee(tasks, ahead, left, stack, counted):  # type: ignore[no-untyped-def]
    """Of each task how long the longest chain is that begins with it, and of each engine how long it works."""
    height = 0
    for e in range(len(ahead.load)):
        counted[e] = -1
    for t in range(len(tasks.order)):
        left[t] = tasks.follow_ptr[t + 1] - tasks.follow_ptr[t]
        if left[t] == 0:
            stack[height] = t
            height += 1
        for k in range(tasks.lane_ptr[t], tasks.lane_ptr[t + 1]):
            e = tasks.engine[tasks.lanes[k]]
            if counted[e] != t:
                counted[e] = t
                ahead.load[e] += max(tasks.durations[tasks.cost[t]], 1)
    while height > 0:
        height -= 1
        t = stack[height]
        ahead.tail[t] += max(tasks.durations[tasks.cost[t]], 1)
        for k in range(tasks.need_ptr[t], tasks.need_ptr[t + 1]):
            n = tasks.needs[k]
            ahead.tail[n] = max(ahead.tail[n], ahead.tail[t])
            left[n] -= 1
            if left[n] == 0:
                stack[height] = n
                height += 1


def serve(  # type: ignore[no-untyped-def]
    tasks, longest, limit, ahead, agenda, waits, free, start, end, queue, queue_end, place
):
    """Serves all tasks: when each starts and ends; gives how many.

    The tasks of each engine stand in its part of the queue as they are served, up to queue_end[engine], which at first
    is where that part begins; place[k] is where slot (task, lane) number k stands.

    With a limit it stops short as soon as a task's chain or an engine's load cannot end in time. Any time of a step
    will do as `longest`; the nearer to all of it, the sooner this ends.
    """
    first, last, chain, row, heap, fresh = agenda
    num_fresh, num_served = 0, 0
    # Until a task is served, start holds its ready time.
    for t in range(len(tasks.order)):
        start[t], waits[t] = 0, tasks.need_ptr[t + 1] - tasks.need_ptr[t]
        if waits[t] == 0:
            fresh[num_fresh] = t
            num_fresh += 1
    size, head, stop, bucket, base, width = 0, 0, 0, 0, 0, 0
    while longest >> width > len(first):
        width += 1
    while True:
        size, stop = put(
            num_fresh, size, head, stop, bucket, base, width, first, last, chain, row, heap, fresh, start, tasks.order
        )
        if head == stop and size == 0:
            num_fresh, bucket, base, width = opened(bucket, base, width, first, chain, fresh, start)
            if num_fresh == 0:
                return num_served
            continue
        task, head, size = take(size, head, stop, row, heap, start, tasks.order)
        begin, lasts = start[task], max(tasks.durations[tasks.cost[task]], 1)
        for k in range(tasks.lane_ptr[task], tasks.lane_ptr[task + 1]):
            begin = max(begin, free[tasks.engine[tasks.lanes[k]]])
        done = begin + lasts
        if limit < NEVER and late(task, begin, done, limit, tasks, free, ahead):
            return num_served
        for k in range(tasks.lane_ptr[task], tasks.lane_ptr[task + 1]):
            e = tasks.engine[tasks.lanes[k]]
            free[e], place[k], queue[queue_end[e]] = done, queue_end[e], task
            queue_end[e] += 1
        start[task], end[task] = begin, done
        num_served, num_fresh = num_served + 1, 0
        for k in range(tasks.follow_ptr[task], tasks.follow_ptr[task + 1]):
            t = tasks.follows[k]
            start[t] = max(start[t], done)
            waits[t] -= 1
            if waits[t] == 0:
                fresh[num_fresh] = t
                num_fresh += 1


def late(task, begin, done, limit, tasks, free, ahead):  # type: ignore[no-untyped-def]
    """Whether a task's chain, or what its engines have still to do, cannot end in time; they have that less to do."""
    found = ahead.tail[task] > limit - begin
    for k in range(tasks.lane_ptr[task], tasks.lane_ptr[task + 1]):
        e = tasks.engine[tasks.lanes[k]]
        # Two lanes of a task on one engine count once: the first of them makes it busy.
        if free[e] < done:
            found |= ahead.load[e] > limit - begin
            ahead.load[e], free[e] = ahead.load[e] - (done - begin), done
    return found


BODIES = (follow, foresee, serve)


@cache
def compiled_bodies() -> tuple[Callable[..., Any], ...]:
    """The same compiled, where numba is installed."""
    return without_arrays(BODIES, (late,))

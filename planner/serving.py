"""Serving: in which order the engines take a graph's tasks, and when each runs.

Its functions are compiled where they can be, and make no array. It does not know where tasks come from, nor memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from castile.runtime.compiled import can_compile

NEVER = np.iinfo(np.int64).max


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


class Queue(NamedTuple):
    """Tasks that are ready and not served.

    They wait in buckets by time, in the order in which they came: the first and last of each, and who is next. Those of
    the bucket under way stand in a row as long as they come in the order in which they are served, as most do, and the
    others in a heap. Those that have just become ready are fresh, and waits[t] says how much a task still waits for.
    """

    first: np.ndarray
    last: np.ndarray
    chain: np.ndarray
    row: np.ndarray
    heap: np.ndarray
    fresh: np.ndarray
    waits: np.ndarray


def room(num_tasks: int) -> Queue:
    """An empty queue for so many tasks, with a bucket for every two of them."""
    buckets = np.empty((2, num_tasks // 2 + 2), np.int32)
    buckets[0] = -1
    return Queue(*buckets, *np.empty((5, num_tasks + 1), np.int32))


def follow(tasks, busy):  # type: ignore[no-untyped-def]
    """The followers of each task, by a counting sort of the needs turned round; and how long each lane works."""
    follow_ptr, follows, num_tasks = tasks.follow_ptr, tasks.follows, len(tasks.order)
    for k in range(len(tasks.needs)):
        follow_ptr[tasks.needs[k] + 2] += 1
    for t in range(num_tasks):
        follow_ptr[t + 2] += follow_ptr[t + 1]
    for t in range(num_tasks):
        lasts = max(tasks.durations[tasks.cost[t]], 1)
        for k in range(tasks.lane_ptr[t], tasks.lane_ptr[t + 1]):
            busy[tasks.lanes[k]] += lasts
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


def serve(tasks, longest, limit, ahead, queue, free, served, start, end):  # type: ignore[no-untyped-def]
    """Serves all tasks: in which order, and every task's start and end; gives how many.

    With a limit it stops short as soon as a task's chain or an engine's load cannot end in time. Any time of a step
    will do as `longest`; the nearer to all of it, the sooner this ends.
    """
    order, follow_ptr, fresh, row, many = tasks.order, tasks.follow_ptr, queue.fresh, queue.row, len(queue.first)
    num_fresh, num_served, size, head, stop, bucket, base, shift = 0, 0, 0, 0, 0, 0, 0, 0
    # Until a task is served, start holds its ready time.
    for t in range(len(order)):
        start[t], queue.waits[t] = 0, tasks.need_ptr[t + 1] - tasks.need_ptr[t]
        if queue.waits[t] == 0:
            fresh[num_fresh] = t
            num_fresh += 1
    while longest >> shift > many:
        shift += 1
    while True:
        for f in range(num_fresh):
            t = fresh[f]
            slot = min((start[t] - base) >> shift, many - 1)
            if slot > bucket:
                enter(queue, slot, t)
            elif head == stop or before(row[stop - 1], t, start, order):
                row[stop] = t
                stop += 1
            else:
                rise(queue.heap, size, t, start, order)
                size += 1
        if head == stop and size == 0:
            bucket += 1
            while bucket < many and queue.first[bucket] < 0:
                bucket += 1
            if bucket == many:
                return num_served
            num_fresh = empty(queue, bucket)
            # What lies behind the last but one waits in the last. From there on the buckets anew, and so wide that they
            # reach as far again at least.
            if bucket == many - 1:
                bucket, base = 0, earliest(fresh, num_fresh, start)
                while base // max(num_served, 1) >> shift > 1:
                    shift += 1
            continue
        if size == 0 or (head < stop and before(row[head], queue.heap[0], start, order)):
            task, head = row[head], head + 1
        else:
            task, size = queue.heap[0], size - 1
            sink(queue.heap, size, start, order)
        begin, lasts = start[task], max(tasks.durations[tasks.cost[task]], 1)
        for k in range(tasks.lane_ptr[task], tasks.lane_ptr[task + 1]):
            begin = max(begin, free[tasks.engine[tasks.lanes[k]]])
        done = begin + lasts
        if limit < NEVER and late(task, begin, done, limit, tasks, free, ahead):
            return num_served
        for k in range(tasks.lane_ptr[task], tasks.lane_ptr[task + 1]):
            free[tasks.engine[tasks.lanes[k]]] = done
        start[task], end[task], served[num_served] = begin, done, task
        num_served, num_fresh = num_served + 1, 0
        for k in range(follow_ptr[task], follow_ptr[task + 1]):
            t = tasks.follows[k]
            start[t] = max(start[t], done)
            queue.waits[t] -= 1
            if queue.waits[t] == 0:
                fresh[num_fresh] = t
                num_fresh += 1


def before(one, other, ready, order):  # type: ignore[no-untyped-def]
    """Whether one task is served before another."""
    return ready[one] < ready[other] or (ready[one] == ready[other] and order[one] < order[other])


def rise(heap, hole, task, ready, order):  # type: ignore[no-untyped-def]
    """A task enters a heap of so many."""
    while hole > 0 and before(task, heap[(hole - 1) >> 1], ready, order):
        heap[hole], hole = heap[(hole - 1) >> 1], (hole - 1) >> 1
    heap[hole] = task


def sink(heap, size, ready, order):  # type: ignore[no-untyped-def]
    """The first task leaves a heap, which has so many others."""
    task, hole, low = heap[size], 0, 1
    while low < size:
        if low + 1 < size and before(heap[low + 1], heap[low], ready, order):
            low += 1
        if before(task, heap[low], ready, order):
            break
        heap[hole], hole, low = heap[low], low, 2 * low + 1
    heap[hole] = task


def enter(queue, slot, task):  # type: ignore[no-untyped-def]
    """A task enters a bucket, behind the others."""
    if queue.first[slot] < 0:
        queue.first[slot] = task
    else:
        queue.chain[queue.last[slot]] = task
    queue.last[slot], queue.chain[task] = task, -1


def empty(queue, slot):  # type: ignore[no-untyped-def]
    """All tasks of a bucket are fresh; how many these are."""
    count, task = 0, queue.first[slot]
    queue.first[slot] = -1
    while task >= 0:
        queue.fresh[count], count, task = task, count + 1, queue.chain[task]
    return count


def earliest(fresh, num_fresh, ready):  # type: ignore[no-untyped-def]
    """When the first of some tasks is ready."""
    found = NEVER
    for f in range(num_fresh):
        found = min(found, ready[fresh[f]])
    return found


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
PARTS = (before, rise, sink, enter, empty, earliest, late)


@cache
def compiled_bodies() -> tuple[Callable[..., Any], ...]:
    """The same compiled, where numba is installed."""
    if not can_compile():
        return BODIES
    import numba
    from numba.extending import register_jitable

    for part in PARTS:
        register_jitable(part)
    # They make no array. To count references to those that they are given would take longer than all else.
    return tuple(numba.njit(cache=True, _nrt=False)(body) for body in BODIES)

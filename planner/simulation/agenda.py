"""The agenda: a priority queue of ready tasks by (ready time, order): a calendar queue of buckets.

Its functions are compiled where numba is installed, and allocate no array. It does not know what tasks need or occupy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from castile.runtime.compiled import assembled, can_compile

NEVER = np.iinfo(np.int64).max


class Agenda(NamedTuple):
    """Ready tasks in buckets by their ready time.

    The tasks of a later bucket are a linked list in order of arrival. Those of the current bucket are in `row` if they
    arrived in the order in which they are taken, as most do, else in `heap`. The last bucket is the overflow.

    first, last   the first and the last task of each bucket's list, -1 where it is empty
    chain         for each task the next one of its bucket's list, or -1
    row           a FIFO queue: row[head] to row[stop - 1]
    heap          a binary heap: its first `size` entries
    fresh         tasks that have just become ready
    """

    first: np.ndarray
    last: np.ndarray
    chain: np.ndarray
    row: np.ndarray
    heap: np.ndarray
    fresh: np.ndarray


def room(num_tasks: int) -> Agenda:
    """An empty agenda for `num_tasks`, with a bucket for every two of them.

    Indices are unsigned where they are never negative: compiled code tests whether any other counts from the end.
    """
    first, last = np.full((2, num_tasks // 2 + 2), -1, np.int32)
    row, heap, fresh = np.empty((3, num_tasks + 1), np.uint32)
    return Agenda(first, last, np.empty(num_tasks + 1, np.int32), row, heap, fresh)


def put(  # type: ignore[no-untyped-def]
    num_fresh, size, head, stop, bucket, base, width, first, last, chain, row, heap, fresh, ready, order
):
    """Insert the first `num_fresh` fresh tasks; returns the new size of the heap and end of the row.

    bucket   number of the current bucket
    base     time at which the first bucket begins
    width    log2 of the picoseconds that a bucket is wide
    """
    for f in range(num_fresh):
        t = fresh[f]
        slot = min((ready[t] - base) >> width, len(first) - 1)
        if slot > bucket:
            if first[slot] < 0:
                first[slot] = t
            else:
                chain[last[slot]] = t
            last[slot], chain[t] = t, -1
        elif head == stop or before(row[stop - 1], t, ready, order):
            row[stop] = t
            stop += 1
        else:
            rise(heap, size, t, ready, order)
            size += 1
    return size, stop


def opened(bucket, base, width, first, chain, fresh, ready):  # type: ignore[no-untyped-def]
    """Move the tasks of the next bucket that has any to `fresh`.

    Returns their number, 0 only if no task is left, and the new bucket, base and width: the last two change when the
    overflow is opened.
    """
    num_fresh, bucket = 0, bucket + 1
    while bucket < len(first) and first[bucket] < 0:
        bucket += 1
    if bucket < len(first):
        task, first[bucket] = first[bucket], -1
        while task >= 0:
            fresh[num_fresh], num_fresh, task = task, num_fresh + 1, chain[task]
        if bucket == len(first) - 1:
            # Start again with buckets twice as wide: they may have been too narrow.
            bucket, base, width = 0, NEVER, width + 1
            for f in range(num_fresh):
                base = min(base, ready[fresh[f]])
    return num_fresh, bucket, base, width


def take(size, head, stop, row, heap, ready, order):  # type: ignore[no-untyped-def]
    """Pop the first task of row and heap; returns it, the new head of the row and the new size of the heap."""
    if size == 0 or (head < stop and before(row[head], heap[0], ready, order)):
        return row[head], head + 1, size
    task = heap[0]
    sink(heap, size - 1, ready, order)
    return task, head, size - 1


def before(one, other, ready, order):  # type: ignore[no-untyped-def]
    """Whether one task comes before another."""
    return ready[one] < ready[other] or (ready[one] == ready[other] and order[one] < order[other])


def rise(heap, hole, task, ready, order):  # type: ignore[no-untyped-def]
    """Push a task onto a heap of size `hole`."""
    while hole > 0 and before(task, heap[(hole - 1) >> 1], ready, order):
        heap[hole], hole = heap[(hole - 1) >> 1], (hole - 1) >> 1
    heap[hole] = task


def sink(heap, size, ready, order):  # type: ignore[no-untyped-def]
    """Pop the first task off a heap, which then has `size` tasks."""
    task, hole, low = heap[size], 0, 1
    while low < size:
        if low + 1 < size and before(heap[low + 1], heap[low], ready, order):
            low += 1
        if before(task, heap[low], ready, order):
            break
        heap[hole], hole, low = heap[low], low, 2 * low + 1
    heap[hole] = task


PARTS = (put, opened, take, before, rise, sink)


def without_arrays(bodies: Sequence[Callable[..., Any]], parts: Sequence[Callable[..., Any]]) -> tuple[Any, ...]:
    """These functions, compiled where numba is installed; they may call `parts` and the parts of this file.

    None of them may allocate an array: reference counting, which would take longer than all else, is off. Parts are
    inlined, since passing so many arrays would take longer than most parts do.
    """
    return assembled(bodies, (), (*PARTS, *parts)) if can_compile() else tuple(bodies)

"""The agenda: tasks that are ready and not served, of which the next one by (ready, order) is taken.

Its functions are compiled where they can be, and make no array. It does not know what tasks need or occupy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from castile.runtime.compiled import assembled, can_compile

NEVER = np.iinfo(np.int64).max


class Agenda(NamedTuple):
    """Room for tasks that are ready and wait, in buckets by the time from which they are.

    In a later bucket they are chained in the order in which they came. Those of the bucket under way stand in a row if
    they came in the order in which they are taken, as most do, else in a heap. The last bucket holds all that comes
    after the others.

    first, last   the first and the last task of each bucket, or -1
    chain         for each task the next one of its bucket, or -1
    row           the tasks in it are row[head] to row[stop - 1]
    heap          the tasks in it are the first `size`
    fresh         tasks that have just become ready
    """

    first: np.ndarray
    last: np.ndarray
    chain: np.ndarray
    row: np.ndarray
    heap: np.ndarray
    fresh: np.ndarray


def room(num_tasks: int) -> Agenda:
    """An empty agenda for so many tasks, with a bucket for every two of them.

    Numbers that are never below 0 are unsigned: compiled code looks whether any other index counts from the end.
    """
    first, last = np.full((2, num_tasks // 2 + 2), -1, np.int32)
    row, heap, fresh = np.empty((3, num_tasks + 1), np.uint32)
    return Agenda(first, last, np.empty(num_tasks + 1, np.int32), row, heap, fresh)


def put(  # type: ignore[no-untyped-def]
    num_fresh, size, head, stop, bucket, base, width, first, last, chain, row, heap, fresh, ready, order
):
    """Enter so many fresh tasks; returns the size of the heap and the end of the row after that.

    Bucket number `bucket` is under way, the first begins at `base`, and each is 2**width picoseconds wide.
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
    """Make the tasks of the next bucket that has any the fresh ones.

    Returns how many they are, 0 only when no task waits; and the number of the bucket under way, where the first begins
    and how wide they are, which change when the last bucket is opened.
    """
    num_fresh, bucket = 0, bucket + 1
    while bucket < len(first) and first[bucket] < 0:
        bucket += 1
    if bucket < len(first):
        task, first[bucket] = first[bucket], -1
        while task >= 0:
            fresh[num_fresh], num_fresh, task = task, num_fresh + 1, chain[task]
        if bucket == len(first) - 1:
            # The buckets begin anew, twice as wide: should they be too narrow, they soon are not.
            bucket, base, width = 0, NEVER, width + 1
            for f in range(num_fresh):
                base = min(base, ready[fresh[f]])
    return num_fresh, bucket, base, width


def take(size, head, stop, row, heap, ready, order):  # type: ignore[no-untyped-def]
    """Take the first task of row and heap; returns it, where the row begins now, and the size of the heap now."""
    if size == 0 or (head < stop and before(row[head], heap[0], ready, order)):
        return row[head], head + 1, size
    task = heap[0]
    sink(heap, size - 1, ready, order)
    return task, head, size - 1


def before(one, other, ready, order):  # type: ignore[no-untyped-def]
    """Whether one task comes before another."""
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


PARTS = (put, opened, take, before, rise, sink)


def without_arrays(bodies: Sequence[Callable[..., Any]], parts: Sequence[Callable[..., Any]]) -> tuple[Any, ...]:
    """These functions, compiled where numba is installed; they may call `parts` and the parts of this file.

    None of them may make an array: references to arrays are not counted, since that would take longer than all else.
    Parts are put in where they are called, since handing on so many arrays would take longer than most parts do.
    """
    return assembled(bodies, (), (*PARTS, *parts)) if can_compile() else tuple(bodies)

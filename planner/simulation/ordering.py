"""Kernel orders: list scheduling by a plan's priority, which decides which of its ready kernels a processor begins
first.

A graph's kernels are scheduled once, and an edge is added from each to the next one on its processor. So the simulator,
the packing of memory and the executor all serve tasks as they get ready. It does not know where durations come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import numpy as np

from castile.planner.lowering.ragged import row_pointers, to_csr
from castile.planner.simulate import LONGEST, Simulated, flatten, num_engines, simulate, simulation_of
from castile.planner.simulation import agenda, repeats, serving, window
from castile.planner.simulation.agenda import NEVER, opened, put, rise, sink, take, without_arrays
from castile.planner.simulation.serving import STOP, Remaining, Schedule, Tasks, beginning, occupy, release
from castile.planner.simulation.window import Alike, Watch
from castile.planner.strategy import PATH, READY
from castile.runtime.compiled import compiled
from castile.runtime.task import NUM_LANES, Lane, TaskGraph
from castile.runtime.timeline import PICOSECONDS

# Returned in place of a time where a step takes too long.
TOO_LATE = -2


class Slower(Exception):
    """A step takes longer than the given limit."""


def simulate_in_order(
    number: np.ndarray,
    tasks: TaskGraph,
    priced: tuple[TaskGraph, np.ndarray],
    engines: Sequence[int],
    order: str,
    most: float = inf,
) -> tuple[TaskGraph, Simulated]:
    """Simulate tasks with their kernels in an order; returns the graph with that order's edges, and its simulation.

    number[T]         the microbatch of each task (`repeats.numbers`)
    priced, engines   the same graph with its durations, and the engines, as for `simulate`
    order             one of strategy.ORDERS
    most              seconds; raises Slower if list scheduling exceeds this
    """
    if order == READY:
        return tasks, simulate(*priced, engines)
    lane, served = list_schedule(*priced, engines, _urgency(number, tasks, priced, order), most)
    # simulating the chained graph would give this schedule
    return chain_kernels(tasks, lane, served.start), simulation_of(priced[0], served)


def simulate_window_in_order(
    number: np.ndarray, tasks: TaskGraph, priced: tuple[TaskGraph, np.ndarray], engines: Sequence[int], order: str,
    most: float, alike: Alike, more: int, watch: Watch | None = None,
) -> tuple[TaskGraph, Simulated] | None:  # fmt: skip
    """The same for a step with `more` further microbatches, through a window; None where the window cannot move.

    alike, watch   as for `window.simulate_window`
    """
    if order == READY:
        found = window.simulate_window(*priced, engines, alike, more, serving.serve_ready, watch)
        return None if found is None else (tasks, found)
    flat = flatten(*priced, engines)
    listing = ListScheduler(flat, _urgency(number, tasks, priced, order), most)
    found = window.simulate_window(*priced, engines, alike, more, listing, watch)
    return None if found is None else (chain_kernels(tasks, listing.lane, found.timeline.start), found)


def with_kernel_order(
    number: np.ndarray, tasks: TaskGraph, priced: tuple[TaskGraph, np.ndarray], engines: Sequence[int], order: str
) -> TaskGraph:
    """Only the graph with the order's edges: it is not simulated where the order adds none."""
    if order == READY:
        return tasks
    lane, served = list_schedule(*priced, engines, _urgency(number, tasks, priced, order))
    return chain_kernels(tasks, lane, served.start)


def _urgency(number: np.ndarray, tasks: TaskGraph, priced: tuple[TaskGraph, np.ndarray], order: str) -> np.ndarray:
    return longest_chains(*priced, number) if order == PATH else -tasks.order


def chain_kernels(tasks: TaskGraph, lane: np.ndarray, start: np.ndarray) -> TaskGraph:
    """The graph with an edge to each kernel from the one that starts before it on its lane.

    lane[T]    the compute lane of each kernel, -1 for other tasks
    start[T]   when each task starts
    """
    kernels = np.flatnonzero(lane >= 0)
    kernels = kernels[np.lexsort((start[kernels], lane[kernels]))]
    one_lane = lane[kernels[1:]] == lane[kernels[:-1]]
    before = np.full(tasks.num_tasks, -1, np.int32)
    before[kernels[1:][one_lane]] = kernels[:-1][one_lane]
    begin = np.zeros(tasks.num_tasks + 1, np.int32)
    found = np.empty(len(tasks.needs) + len(kernels), np.int32)
    size = compiled(_joined)(tasks.need_ptr, tasks.needs, before, begin, found)
    return replace(tasks, need_ptr=begin, needs=found[:size])


def list_schedule(
    tasks: TaskGraph, durations: np.ndarray, engines: Sequence[int], urgency: np.ndarray, most: float = inf
) -> tuple[np.ndarray, Schedule]:
    """The list schedule in which a lane that is free takes its most urgent ready kernel, of equal ones the first in
    order; all other tasks are served as they get ready, as by `simulate`.

    Returns int64[T], the compute lane of each kernel and -1 for other tasks, and the schedule. Raises Slower once a
    task ends after `most` seconds.
    """
    flat = flatten(tasks, durations, engines)
    served = serving.new_schedule(flat, num_engines(tasks, engines), serving.compiled_bodies()[0])
    listing = ListScheduler(flat, urgency, most)
    listing(flat, served, serving.nothing_served(flat, served))
    return listing.lane, served


class ListScheduler:
    """Serves tasks as `serving.serve_ready` does, but kernels as `list_schedule` does.

    lane    int64[T]: the compute lane of each kernel, -1 for tasks that occupy another lane or several
    rest    int64[P]: picoseconds of kernels on each lane that are not among the tasks
    """

    def __init__(self, tasks: Tasks, urgency: np.ndarray, most: float = inf) -> None:
        proc, which = np.divmod(tasks.lanes[tasks.lane_ptr[:-1]].astype(np.int64), NUM_LANES)
        is_kernel = (np.diff(tasks.lane_ptr) == 1) & (which == Lane.COMPUTE)
        self.lane, num_procs = np.where(is_kernel, proc, -1), len(tasks.engine) // NUM_LANES
        # seconds are rounded, which may be a picosecond off
        self._latest = LONGEST if most == inf else int(most * PICOSECONDS) + 1
        self._priority, self._begin = -urgency, row_pointers(np.bincount(proc[is_kernel], minlength=num_procs))
        self._until, self.rest = np.zeros((2, num_procs), np.int64)

    def __call__(self, tasks: Tasks, served: Schedule, left: Remaining) -> int:
        """Raises Slower as `list_schedule` does."""
        num_tasks, num_procs = len(self.lane), len(self.rest)
        room, (when, what) = agenda.room(num_tasks + num_procs), np.zeros((2, num_tasks + num_procs), np.int64)
        until: int = _compiled_starts()(
            self._latest, int(served.busy.max(initial=0)), tasks, self.lane, self._priority, room, *left[:3],
            self._latest - self._until - self.rest, self._until, self._begin, np.empty(num_tasks, np.int64),
            np.empty(num_procs, np.int64), when, what, served.start, served.end, served.queue, left.queue_end,
            served.place,
        )  # fmt: skip
        if until == TOO_LATE:
            raise Slower
        return until


def longest_chains(tasks: TaskGraph, durations: np.ndarray, number: np.ndarray) -> np.ndarray:
    """int64[T]: picoseconds of the longest chain of tasks that begins with a task, or with another task of the same
    step or transfer at the same depth: so all processors have one order, and folding does not change it.

    number   the microbatch of each task; no chain leads out of one but the last, so that all have the same order
    """
    after, before = _edges(tasks)
    of = number[before]
    inside = (of < 0) | (of == number.max(initial=-1)) | (of == number[after])
    after, before = after[inside], before[inside]
    followers = _followers(tasks.num_tasks, after, before)
    level = compiled(_levels)(np.bincount(after, minlength=tasks.num_tasks), *followers)
    block = tasks.order >> repeats.FLOW
    by_level = np.lexsort((block, level))
    differs = (np.diff(level[by_level]) > 0) | (np.diff(block[by_level]) > 0)
    group = np.empty(tasks.num_tasks, np.int64)
    group[by_level] = np.cumsum(np.append(np.zeros(min(1, tasks.num_tasks), np.int64), differs))
    return compiled(_longest)(by_level, group, _lasts(tasks, durations), *followers)[group]


def _lasts(tasks: TaskGraph, durations: np.ndarray) -> np.ndarray:
    return np.maximum(np.asarray(durations, np.int64)[tasks.cost], 1)


def _edges(tasks: TaskGraph) -> tuple[np.ndarray, np.ndarray]:
    """The pairs (after, before) of waiting tasks and what they wait for."""
    return np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.need_ptr)), np.asarray(tasks.needs, np.int64)


def _followers(num_tasks: int, after: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The followers of each task in CSR form."""
    return to_csr(before, after, num_tasks)


def _levels(waits, follow_ptr, follows):  # type: ignore[no-untyped-def]
    """The depth of each task: the length of the longest chain before it. `waits`: how many tasks each waits for."""
    level, ready = np.zeros(len(waits), np.int64), [t for t in range(len(waits)) if waits[t] == 0]
    while ready:
        t = ready.pop()
        for k in range(follow_ptr[t], follow_ptr[t + 1]):
            f = follows[k]
            level[f] = max(level[f], level[t] + 1)
            waits[f] -= 1
            if waits[f] == 0:
                ready.append(f)
    return level


def _longest(by_group, group, lasts, follow_ptr, follows):  # type: ignore[no-untyped-def]
    """The duration of the longest chain of groups that begins with each; groups wait for earlier ones only."""
    found = np.zeros(len(lasts), np.int64)
    for t in by_group[::-1]:
        ahead = 0
        for k in range(follow_ptr[t], follow_ptr[t + 1]):
            ahead = max(ahead, found[group[follows[k]]])
        found[group[t]] = max(found[group[t]], lasts[t] + ahead)
    return found


def _starts(  # type: ignore[no-untyped-def]
    latest, longest, tasks, lane, priority, agenda, base, waits, free, spare, until, begin, waiting, held, when, what,
    start, end, queue, queue_end, place,
):  # fmt: skip
    """The list schedule, otherwise as `serving.serve`; TOO_LATE where a task ends after `latest`.

    At equal times kernels arrive at their lanes first, then free lanes choose one, then tasks are served in their
    order: so a chosen kernel is as ready as it is with an edge from the kernel before it.

    longest   an estimate of the step's time, as in `serving.serve`
    spare     how long each lane may still idle before a kernel surely ends too late
    until     when each lane ended its last kernel
    held      how many kernels wait for each lane, -1 while it is free
    waiting   these kernels, a heap from waiting[begin[lane]] on
    agenda    events: tasks and, numbered behind them, lanes that choose
    when      the time of each event
    what      the rank of events at equal times: arrivals in their order, far below 0, then lanes, just below 0, then
              tasks in their order
    """
    first, last, chain, row, heap, fresh = agenda
    order, num_tasks, num_lanes = tasks.order, len(lane), len(held)
    num_fresh = _at_first(tasks, lane, base, waits, spare, until, held, when, what, start, fresh)
    left, head, stop, bucket, width = 0, 0, 0, 0, 0
    while longest >> width > len(first):
        width += 1
    while True:
        if stop + num_fresh > len(row):
            # A task may come twice, but only after it has gone: move the row to its beginning.
            for k in range(head, stop):
                row[k - head] = row[k]
            head, stop = 0, stop - head
        left, stop = put(
            num_fresh, left, head, stop, bucket, base, width, first, last, chain, row, heap, fresh, when, what
        )
        if head == stop and left == 0:
            num_fresh, bucket, base, width = opened(bucket, base, width, first, chain, fresh, when)
            if num_fresh == 0:
                return -1
            continue
        t, head, left = take(left, head, stop, row, heap, when, what)
        num_fresh = 0
        if t < num_tasks and order[t] == STOP:
            _stopped(waits, end, when, start)
            return when[t]
        if t >= num_tasks:
            q = t - num_tasks
            held[q] -= 1
            if held[q] >= 0:
                chosen = waiting[begin[q]]
                sink(waiting[begin[q] :], held[q], priority, order)
                when[chosen], what[chosen] = when[t], order[chosen]
                fresh[0], num_fresh = chosen, 1
        elif what[t] < 0:
            q = lane[t]
            if held[q] < 0:
                held[q], when[num_tasks + q], what[num_tasks + q] = 0, when[t], q - num_lanes
                fresh[0], num_fresh = num_tasks + q, 1
            rise(waiting[begin[q] :], held[q], t, priority, order)
            held[q] += 1
        else:
            start[t] = beginning(tasks, t, when[t], free)
            done = start[t] + max(tasks.durations[tasks.cost[t]], 1)
            if done > latest:
                return TOO_LATE
            end[t] = done
            occupy(tasks, t, done, free, queue, queue_end, place)
            if lane[t] >= 0:
                q = lane[t]
                spare[q] -= start[t] - until[q]
                until[q] = done
                if spare[q] < 0:
                    return TOO_LATE
                when[num_tasks + q], what[num_tasks + q] = done, q - num_lanes
                fresh[0], num_fresh = num_tasks + q, 1
            num_fresh = release(tasks, t, done, when, waits, fresh, num_fresh)


def _at_first(  # type: ignore[no-untyped-def]
    tasks, lane, base, waits, spare, until, held, when, what, start, fresh
):  # fmt: skip
    """Set up the events of all tasks and lanes, and take all kernels off their lanes' `spare`; returns the number of
    fresh events.
    """
    num_fresh = 0
    for t in range(len(lane)):
        if waits[t] < 0:
            continue
        # Before a STOP task kernels arrive and lanes choose.
        when[t], what[t] = start[t], max(tasks.order[t], -1)
        if lane[t] >= 0:
            what[t] -= NEVER
            spare[lane[t]] -= max(tasks.durations[tasks.cost[t]], 1)
        if waits[t] == 0:
            fresh[num_fresh] = t
            num_fresh += 1
    for q in range(len(held)):
        held[q] = -1
        if until[q] >= base:
            held[q], when[len(lane) + q], what[len(lane) + q] = 0, until[q], q - len(held)
            fresh[num_fresh] = len(lane) + q
            num_fresh += 1
    return num_fresh


def _stopped(waits, end, when, start):  # type: ignore[no-untyped-def]
    """Write the lower bounds of ready times of unserved tasks into `start`."""
    for t in range(len(end)):
        if waits[t] >= 0 and end[t] == NEVER:
            start[t] = when[t]


def _joined(need_ptr, needs, before, begin, found):  # type: ignore[no-untyped-def]
    """Merge `before` into the rows of needs, each once and in order; returns the number of needs."""
    size = 0
    for t in range(len(before)):
        more = before[t]
        for k in range(need_ptr[t], need_ptr[t + 1]):
            if 0 <= more <= needs[k]:
                if more < needs[k]:
                    found[size] = more
                    size += 1
                more = -1
            found[size] = needs[k]
            size += 1
        if more >= 0:
            found[size] = more
            size += 1
        begin[t + 1] = size
    return size


@cache
def _compiled_starts() -> Callable[..., Any]:
    """The loop, compiled where numba is installed."""
    return without_arrays((_starts,), (*serving.PARTS, _at_first, _stopped))[0]

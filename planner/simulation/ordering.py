"""Orders: which of the kernels that are ready a processor begins first, as a plan says.

A graph's kernels are listed once (list scheduling), and each then waits for the one before on its processor: so whoever
simulates, packs or executes it serves what is ready, as ever. It does not know where durations come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import numpy as np

from castile.planner.lowering.rows import compressed, pointer
from castile.planner.simulate import LONGEST, Simulated, simulate
from castile.planner.simulation import repeats
from castile.planner.simulation.agenda import rise, sink, without_arrays
from castile.planner.strategy import PATH, READY
from castile.runtime.compiled import compiled
from castile.runtime.task import NUM_LANES, Lane, TaskGraph
from castile.runtime.timeline import PICOSECONDS


class Slower(Exception):
    """A step takes longer than was asked about."""


def simulated(
    number: np.ndarray,
    tasks: TaskGraph,
    priced: tuple[TaskGraph, np.ndarray],
    engines: Sequence[int],
    order: str,
    most: float = inf,
) -> tuple[TaskGraph, Simulated]:
    """The tasks of a program with its kernels in the order of that name, and when they would run.

    number[T]         of which microbatch each is, as `repeats.numbers` says
    priced, engines   the same graph with durations, and engines, as `simulate` takes them
    most              seconds; raises Slower where that is seen of an order while it is made
    """
    timed, durations = priced
    if order != READY:
        tasks = ordered(number, tasks, priced, engines, order, most)
        timed = replace(timed, need_ptr=tasks.need_ptr, needs=tasks.needs)
    return tasks, simulate(timed, durations, engines)


def ordered(
    number: np.ndarray,
    tasks: TaskGraph,
    priced: tuple[TaskGraph, np.ndarray],
    engines: Sequence[int],
    order: str,
    most: float = inf,
) -> TaskGraph:
    """The same graph alone."""
    if order == READY:
        return tasks
    urgency = longest(*priced, number) if order == PATH else -tasks.order
    need_ptr, needs = chained(tasks, *listed(*priced, engines, urgency, most))
    return replace(tasks, need_ptr=need_ptr, needs=needs)


def chained(tasks: TaskGraph, lane: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """need_ptr and needs of the graph in which kernels also wait for those that start before them, each on its lane."""
    kernels = np.flatnonzero(lane >= 0)
    kernels = kernels[np.lexsort((start[kernels], lane[kernels]))]
    one_lane = lane[kernels[1:]] == lane[kernels[:-1]]
    after, before = _edges(tasks)
    after, before = np.append(after, kernels[1:][one_lane]), np.append(before, kernels[:-1][one_lane])
    return compressed(after, before, tasks.num_tasks)


def listed(
    tasks: TaskGraph, durations: np.ndarray, engines: Sequence[int], urgency: np.ndarray, most: float = inf
) -> tuple[np.ndarray, np.ndarray]:
    """int64[T]: the compute lane of each kernel, -1 of what occupies another or several; and when each task starts
    where a lane that has done a kernel takes the most urgent of those that are ready, of equal ones the first in order.

    All else is served as it gets ready, as by `simulate`. Raises Slower once one ends after so many seconds.
    """
    num_engines, lane_ptr = max(engines) + 1, np.asarray(tasks.lane_ptr, np.int64)
    proc, which = np.divmod(np.asarray(tasks.lanes, np.int64), NUM_LANES)
    first = lane_ptr[:-1]
    lane = np.where((np.diff(lane_ptr) == 1) & (which[first] == Lane.COMPUTE), proc[first], -1)
    place = np.empty(tasks.num_tasks, np.int64)
    place[np.argsort(tasks.order)] = np.arange(tasks.num_tasks)
    num_procs, num_tasks, start = tasks.num_procs, tasks.num_tasks, np.empty(tasks.num_tasks, np.int64)
    agenda, when, what = np.zeros((3, num_tasks + num_procs), np.int64)
    # as seconds are told, which may be a picosecond off
    latest = LONGEST if most == inf else int(most * PICOSECONDS) + 1
    lasts, is_kernel, spare = _lasts(tasks, durations), lane >= 0, np.full(num_procs, latest)
    np.subtract.at(spare, lane[is_kernel], lasts[is_kernel])
    is_all = _compiled_starts()(
        latest, spare, np.zeros(num_procs, np.int64), lane, -urgency, place, lasts, lane_ptr,
        proc * num_engines + np.asarray(engines)[which],
        np.diff(tasks.need_ptr).astype(np.int64), *_followers(num_tasks, *_edges(tasks)),
        np.zeros(num_procs * num_engines, np.int64), pointer(np.bincount(lane[is_kernel], minlength=num_procs)),
        np.empty(num_tasks, np.int64), np.full(num_procs, -1, np.int64), agenda, when, what, start,
    )  # fmt: skip
    if not is_all:
        raise Slower
    return lane, start


def longest(tasks: TaskGraph, durations: np.ndarray, number: np.ndarray) -> np.ndarray:
    """int64[T]: how long the longest chain lasts that begins with a task, or with one of the same step or transfer that
    as long a chain comes before: so all processors have one order, and folding does not change it.

    number   of which microbatch each is; no chain leads out of one but the last, so that each has the same order
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
    """Who waits, and for whom."""
    return np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.need_ptr)), np.asarray(tasks.needs, np.int64)


def _followers(num_tasks: int, after: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By task those that wait for it: where they begin, and which."""
    return compressed(before, after, num_tasks)


def _levels(waits, follow_ptr, follows):  # type: ignore[no-untyped-def]
    """How many tasks the longest chain has that comes before each; waits: for how many each waits."""
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
    """How long the longest chain of groups lasts that begins with each; groups wait for earlier ones only."""
    found = np.zeros(len(lasts), np.int64)
    for t in by_group[::-1]:
        ahead = 0
        for k in range(follow_ptr[t], follow_ptr[t + 1]):
            ahead = max(ahead, found[group[follows[k]]])
        found[group[t]] = max(found[group[t]], lasts[t] + ahead)
    return found


def _starts(  # type: ignore[no-untyped-def]
    latest, spare, until, lane, priority, place, lasts, lane_ptr, engine, waits, follow_ptr, follows, free, begin,
    waiting, held, agenda, when, what, start,
):  # fmt: skip
    """When each task starts; whether none ends after the latest time, else only some have been found.

    At any time first kernels come to their lanes, then lanes that have none choose one, and it and all else that is
    ready is served in its place: so what is chosen is as ready then as it is behind the kernel before it.

    spare     for how long each lane may have no kernel before one surely ends too late
    until     when it was done with the last one
    held      how many kernels wait for each lane, -1 while it has none
    waiting   these, a heap from waiting[begin[lane]] on
    agenda    what happens next, a heap of tasks and, behind their numbers, of lanes that choose
    when      at what time it does
    what      what goes first then: below `size` a kernel comes, below twice it a lane chooses, then tasks are served
    """
    size, num_tasks, left = len(when), len(lane), 0
    for t in range(num_tasks):
        when[t], what[t] = 0, place[t] if lane[t] >= 0 else place[t] + 2 * size
        if waits[t] == 0:
            rise(agenda, left, t, when, what)
            left += 1
    while left > 0:
        t, left = agenda[0], left - 1
        sink(agenda, left, when, what)
        if t >= num_tasks:
            q = t - num_tasks
            held[q] -= 1
            if held[q] >= 0:
                chosen = waiting[begin[q]]
                sink(waiting[begin[q] :], held[q], priority, place)
                when[chosen], what[chosen] = when[t], place[chosen] + 2 * size
                rise(agenda, left, chosen, when, what)
                left += 1
        elif what[t] < size:
            q = lane[t]
            if held[q] < 0:
                held[q], when[num_tasks + q], what[num_tasks + q] = 0, when[t], size + q
                rise(agenda, left, num_tasks + q, when, what)
                left += 1
            rise(waiting[begin[q] :], held[q], t, priority, place)
            held[q] += 1
        else:
            start[t] = when[t]
            for k in range(lane_ptr[t], lane_ptr[t + 1]):
                start[t] = max(start[t], free[engine[k]])
            done = start[t] + lasts[t]
            if done > latest:
                return False
            for k in range(lane_ptr[t], lane_ptr[t + 1]):
                free[engine[k]] = done
            if lane[t] >= 0:
                spare[lane[t]] -= start[t] - until[lane[t]]
                until[lane[t]] = done
                if spare[lane[t]] < 0:
                    return False
                q = num_tasks + lane[t]
                when[q], what[q] = done, size + lane[t]
                rise(agenda, left, q, when, what)
                left += 1
            for k in range(follow_ptr[t], follow_ptr[t + 1]):
                f = follows[k]
                when[f] = max(when[f], done)
                waits[f] -= 1
                if waits[f] == 0:
                    rise(agenda, left, f, when, what)
                    left += 1
    return True


@cache
def _compiled_starts() -> Callable[..., Any]:
    """The same compiled, where numba is installed."""
    return without_arrays((_starts,), ())[0]

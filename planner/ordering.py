"""Orders: which of the kernels that are ready a processor begins first, as a plan says.

A graph's kernels are listed once (list scheduling), and each then waits for the one before on its processor: so whoever
simulates, packs or executes it serves what is ready, as ever. It does not know where durations come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from castile.planner import repeats
from castile.planner.program import Program
from castile.planner.rows import compressed, pointer
from castile.planner.simulate import Simulated, simulate
from castile.planner.strategy import PATH, READY
from castile.runtime.compiled import compiled
from castile.runtime.task import NUM_LANES, Lane, TaskGraph


def simulated(
    program: Program, tasks: TaskGraph, priced: tuple[TaskGraph, np.ndarray], engines: Sequence[int], order: str
) -> tuple[TaskGraph, Simulated]:
    """The tasks of a program with its kernels in the order of that name, and when they would run.

    priced, engines   the same graph with durations, and engines, as `simulate` takes them
    """
    timed, durations = priced
    if order != READY:
        tasks = ordered(program, tasks, priced, engines, order)
        timed = replace(timed, need_ptr=tasks.need_ptr, needs=tasks.needs)
    return tasks, simulate(timed, durations, engines)


def ordered(
    program: Program, tasks: TaskGraph, priced: tuple[TaskGraph, np.ndarray], engines: Sequence[int], order: str
) -> TaskGraph:
    """The same graph alone."""
    if order == READY:
        return tasks
    urgency = longest(*priced, repeats.numbers(program, tasks)) if order == PATH else -tasks.order
    need_ptr, needs = chained(tasks, *listed(*priced, engines, urgency))
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
    tasks: TaskGraph, durations: np.ndarray, engines: Sequence[int], urgency: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """int64[T]: the compute lane of each kernel, -1 of what occupies another or several; and when each task starts
    where a lane that has done a kernel takes the most urgent of those that are ready, of equal ones the first in order.

    All else is served as it gets ready, as by `simulate`.
    """
    num_engines, lane_ptr = max(engines) + 1, np.asarray(tasks.lane_ptr, np.int64)
    proc, which = np.divmod(np.asarray(tasks.lanes, np.int64), NUM_LANES)
    first = lane_ptr[:-1]
    lane = np.where((np.diff(lane_ptr) == 1) & (which[first] == Lane.COMPUTE), proc[first], -1)
    place = np.empty(tasks.num_tasks, np.int64)
    place[np.argsort(tasks.order)] = np.arange(tasks.num_tasks)
    start = compiled(_starts)(
        lane, -urgency, place, _lasts(tasks, durations), lane_ptr, proc * num_engines + np.asarray(engines)[which],
        np.diff(tasks.need_ptr).astype(np.int64), *_followers(tasks.num_tasks, *_edges(tasks)),
        np.zeros(tasks.num_procs * num_engines, np.int64), np.zeros(tasks.num_procs, np.bool_),
    )  # fmt: skip
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
    return pointer(np.bincount(before, minlength=num_tasks)), after[np.argsort(before, kind="stable")]


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
    lane, priority, place, lasts, lane_ptr, engine, waits, follow_ptr, follows, free, busy
):
    """When each task starts.

    At any time first kernels come to their lanes (0), then lanes that have none choose one (1), and it and all else
    that is ready is served in its place (2): so what is chosen is as ready then as it is behind the kernel before it.
    """
    ready, start = np.zeros(len(lane), np.int64), np.empty(len(lane), np.int64)
    waiting = [[(0, 0, 0)] for _ in range(len(busy))]
    for one in waiting:
        one.clear()
    agenda = [(0, 0 if lane[t] >= 0 else 2, place[t], t) for t in range(len(lane)) if waits[t] == 0]
    heapify(agenda)
    while agenda:
        now, what, _, t = heappop(agenda)
        if what == 0:
            heappush(waiting[lane[t]], (priority[t], place[t], t))
            if not busy[lane[t]]:
                busy[lane[t]] = True
                heappush(agenda, (now, 1, 0, lane[t]))
        elif what == 1:
            busy[t] = len(waiting[t]) > 0
            if busy[t]:
                _, first, kernel = heappop(waiting[t])
                heappush(agenda, (now, 2, first, kernel))
        else:
            begin = now
            for k in range(lane_ptr[t], lane_ptr[t + 1]):
                begin = max(begin, free[engine[k]])
            start[t], done = begin, begin + lasts[t]
            for k in range(lane_ptr[t], lane_ptr[t + 1]):
                free[engine[k]] = done
            if lane[t] >= 0:
                heappush(agenda, (done, 1, 0, lane[t]))
            for k in range(follow_ptr[t], follow_ptr[t + 1]):
                f = follows[k]
                ready[f] = max(ready[f], done)
                waits[f] -= 1
                if waits[f] == 0:
                    heappush(agenda, (ready[f], 0 if lane[f] >= 0 else 2, place[f], f))
    return start

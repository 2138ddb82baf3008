"""State of the delta simulation in flat arrays: the tasks, their schedule, a change to them, and scratch memory.

Its functions are compiled where numba is installed. It does not know how a change is timed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# The most unchanged stretches that a proposal may skip.
NUM_SKIPS = 1024
# Loads of engines are kept for every STRIDE positions, or every E for more than STRIDE engines.
STRIDE = 256
# What a change does to the task of a number, in bits; a task that is replaced is removed and added.
KEPT, REMOVED, ADDED = 0, 1, 2


class TaskTable(NamedTuple):
    """Tasks by number.

    order, duration           int64: the key that breaks ties; picoseconds
    lane_lo, lane_hi, lanes   the lanes of task t are lanes[lane_lo[t]:lane_hi[t]]
    need_lo, need_hi, needs   the numbers of the tasks that t needs, in the same form
    """

    order: np.ndarray
    duration: np.ndarray
    lane_lo: np.ndarray
    lane_hi: np.ndarray
    lanes: np.ndarray
    need_lo: np.ndarray
    need_hi: np.ndarray
    needs: np.ndarray


class Baseline(NamedTuple):
    """The schedule of the accepted graph, from which a proposal is timed. Times are in picoseconds.

    seq, ready, end, high           by position in the order of service: the task, its ready time, its end, and the
                                    latest end up to this position
    pos                             by number: the task's position, or -1
    follow_lo, follow_hi, follows   by number: the followers of the task, as in TaskTable
    num_roots                       the number of tasks that need none; they are served first
    loads                           int64[., E]: work of each engine before every STRIDE-th position; last, all of it
    """

    seq: np.ndarray
    pos: np.ndarray
    ready: np.ndarray
    end: np.ndarray
    high: np.ndarray
    follow_lo: np.ndarray
    follow_hi: np.ndarray
    follows: np.ndarray
    num_roots: int
    loads: np.ndarray


class Patch(NamedTuple):
    """A change of the graph.

    removed        the positions of removed tasks, ascending
    added          the numbers of added tasks
    fate           by number: KEPT, REMOVED, ADDED, or both
    first_link     by number: the head of the linked list of added tasks that need it, -1 where none does
    link, link_to  of each entry of these lists the next one, and the added task
    """

    removed: np.ndarray
    added: np.ndarray
    fate: np.ndarray
    first_link: np.ndarray
    link: np.ndarray
    link_to: np.ndarray


class Scratch(NamedTuple):
    """Scratch memory of a proposal.

    served, done            by number: the last epoch in which the task was served, and its end
    touched, waits, ready   by number: the stretch for which the next two hold, the number of unserved tasks that the
                            task needs, and its ready time so far
    unserved                the added tasks that are not served
    out                     the tasks served one by one, in order
    free, left, mark        by engine: when it is free, picoseconds of work that are left, and a mark
    skips                   int64[NUM_SKIPS, 4], the skipped stretches: the number of tasks served one by one before it,
                            its first position and the one behind it, its shift in picoseconds
    """

    served: np.ndarray
    done: np.ndarray
    touched: np.ndarray
    waits: np.ndarray
    ready: np.ndarray
    unserved: np.ndarray
    out: np.ndarray
    free: np.ndarray
    left: np.ndarray
    mark: np.ndarray
    skips: np.ndarray


def empty_schedule(num_engines: int) -> tuple[TaskTable, Baseline]:
    """A graph without tasks, and its schedule."""
    wide, narrow = np.zeros(0, np.int64), np.zeros(0, np.int32)
    table = TaskTable(wide, wide, narrow, narrow, narrow, narrow, narrow, narrow)
    loads = np.zeros((2, num_engines), np.int64)
    return table, Baseline(narrow, narrow, wide, wide, wide, narrow, narrow, narrow, 0, loads)


def new_scratch(num_tasks: int, num_engines: int) -> tuple[Patch, Scratch]:
    """An empty change, and scratch memory, for numbers below `num_tasks`."""

    def wide(length: int = num_tasks) -> np.ndarray:
        return np.zeros(length, np.int64)

    def narrow(length: int = num_tasks) -> np.ndarray:
        return np.zeros(length, np.int32)

    nothing = narrow(0)
    patch = Patch(nothing, nothing, np.zeros(num_tasks, np.int8), np.full(num_tasks, -1, np.int32), nothing, nothing)
    scratch = Scratch(
        wide(), wide(), wide(), narrow(), wide(), narrow(), narrow(), wide(num_engines), wide(num_engines),
        wide(num_engines), np.zeros((NUM_SKIPS, 4), np.int64),
    )  # fmt: skip
    return patch, scratch


def apply_change(first, removed, added, engine, table, baseline, patch, scratch):  # type: ignore[no-untyped-def]
    """Enter a change into the table, `patch.fate`, the linked lists of added followers, and the work left by engine.

    first     the position in the table's `needs` from which those of added tasks stand
    removed   the numbers of removed tasks
    added     a table of the added tasks; its rows are swapped with the table's
    """
    for e in range(len(scratch.left)):
        scratch.left[e], scratch.mark[e] = baseline.loads[len(baseline.loads) - 1, e], -1
    for i in range(len(removed)):
        t = removed[i]
        assert baseline.pos[t] >= 0 and patch.fate[t] == KEPT
        patch.fate[t] = REMOVED
        add_load(t, -2 - i, -1, engine, table, scratch)
    swap_rows(patch.added, added, table)
    for i in range(len(patch.added)):
        t = patch.added[i]
        assert patch.fate[t] < ADDED
        patch.fate[t] += ADDED
        add_load(t, -2 - len(removed) - i, 1, engine, table, scratch)
    for t in removed:
        if patch.fate[t] == REMOVED:
            for k in range(baseline.follow_lo[t], baseline.follow_hi[t]):
                assert patch.fate[baseline.follows[k]] != KEPT, "a task that is kept needs one that is removed"
    for t in patch.added:
        for k in range(table.need_lo[t], table.need_hi[t]):
            need = table.needs[k]
            assert patch.fate[need] != REMOVED, "an added task needs one that is removed"
            patch.link[k - first], patch.link_to[k - first] = patch.first_link[need], t
            patch.first_link[need] = k - first


def swap_rows(number, added, table):  # type: ignore[no-untyped-def]
    """Swap the table's rows of these numbers with those of another table; a second call undoes it."""
    for i in range(len(number)):
        t = number[i]
        table.order[t], added.order[i] = added.order[i], table.order[t]
        table.duration[t], added.duration[i] = added.duration[i], table.duration[t]
        table.lane_lo[t], added.lane_lo[i] = added.lane_lo[i], table.lane_lo[t]
        table.lane_hi[t], added.lane_hi[i] = added.lane_hi[i], table.lane_hi[t]
        table.need_lo[t], added.need_lo[i] = added.need_lo[i], table.need_lo[t]
        table.need_hi[t], added.need_hi[i] = added.need_hi[i], table.need_hi[t]


def add_load(task, token, sign, engine, table, scratch):  # type: ignore[no-untyped-def]
    """Add a task to the work left of each of its engines, once, or subtract it; `token` is unique to the call."""
    for k in range(table.lane_lo[task], table.lane_hi[task]):
        e = engine[table.lanes[k]]
        if scratch.mark[e] != token:
            scratch.mark[e] = token
            scratch.left[e] += sign * table.duration[task]


def merge_sequences(seq, ready, end, out, new_ready, new_end, skips):  # type: ignore[no-untyped-def]
    """Merge the tasks served one by one with the skipped stretches; returns seq, ready, end and high of Baseline."""
    num_tasks = len(out)
    for s in range(len(skips)):
        num_tasks += skips[s, 2] - skips[s, 1]
    all_seq, all_ready = np.empty(num_tasks, np.int32), np.empty(num_tasks, np.int64)
    all_end, high = np.empty(num_tasks, np.int64), np.empty(num_tasks, np.int64)
    position, k, last = 0, 0, np.int64(0)
    for s in range(len(skips) + 1):
        stop = skips[s, 0] if s < len(skips) else len(out)
        while k < stop:
            t = out[k]
            all_seq[position], all_ready[position], all_end[position] = t, new_ready[t], new_end[t]
            position, k = position + 1, k + 1
        if s < len(skips):
            for p in range(skips[s, 1], skips[s, 2]):
                all_seq[position] = seq[p]
                all_ready[position], all_end[position] = ready[p] + skips[s, 3], end[p] + skips[s, 3]
                position += 1
    for p in range(num_tasks):
        last = max(last, all_end[p])
        high[p] = last
    return all_seq, all_ready, all_end, high


def pack_table(size, seq, table):  # type: ignore[no-untyped-def]
    """The table with the rows of these tasks only, lanes and needs in the order of service, and half as much spare
    capacity; and the numbers of lanes and needs.
    """
    num_lanes, num_needs, space = 0, 0, size + size // 2
    for t in seq:
        num_lanes += table.lane_hi[t] - table.lane_lo[t]
        num_needs += table.need_hi[t] - table.need_lo[t]
    order, duration = np.zeros(space, np.int64), np.zeros(space, np.int64)
    lane_lo, lane_hi = np.zeros(space, np.int32), np.zeros(space, np.int32)
    need_lo, need_hi = np.zeros(space, np.int32), np.zeros(space, np.int32)
    lanes = np.empty(num_lanes + num_lanes // 2, np.int32)
    needs = np.empty(num_needs + num_needs // 2, np.int32)
    num_lanes, num_needs = 0, 0
    for t in seq:
        order[t], duration[t], lane_lo[t], need_lo[t] = table.order[t], table.duration[t], num_lanes, num_needs
        for k in range(table.lane_lo[t], table.lane_hi[t]):
            lanes[num_lanes] = table.lanes[k]
            num_lanes += 1
        for k in range(table.need_lo[t], table.need_hi[t]):
            needs[num_needs] = table.needs[k]
            num_needs += 1
        lane_hi[t], need_hi[t] = num_lanes, num_needs
    return (order, duration, lane_lo, lane_hi, lanes, need_lo, need_hi, needs), num_lanes, num_needs


def index_followers(size, num_needs, seq, table):  # type: ignore[no-untyped-def]
    """pos, follow_lo, follow_hi, follows and num_roots of Baseline, with half as much spare capacity."""
    size += size // 2
    pos, follow_lo, follow_hi = np.full(size, -1, np.int32), np.zeros(size, np.int32), np.zeros(size, np.int32)
    follows, total, num_roots = np.empty(num_needs, np.int32), 0, 0
    for k in range(num_needs):
        follow_hi[table.needs[k]] += 1
    for p in range(len(seq)):
        t = seq[p]
        pos[t], follow_lo[t], follow_hi[t], total = p, total, total, total + follow_hi[t]
        num_roots += table.need_lo[t] == table.need_hi[t]
    for p in range(len(seq)):
        t = seq[p]
        for k in range(table.need_lo[t], table.need_hi[t]):
            need = table.needs[k]
            follows[follow_hi[need]] = t
            follow_hi[need] += 1
    return pos, follow_lo, follow_hi, follows, num_roots


def cumulative_loads(num_engines, engine, seq, table):  # type: ignore[no-untyped-def]
    """`loads` of Baseline."""
    stride = max(STRIDE, num_engines)
    loads = np.zeros((len(seq) // stride + 2, num_engines), np.int64)
    load, mark = np.zeros(num_engines, np.int64), np.full(num_engines, -1, np.int64)
    for p in range(len(seq)):
        if p % stride == 0:
            loads[p // stride] = load
        t = seq[p]
        for k in range(table.lane_lo[t], table.lane_hi[t]):
            e = engine[table.lanes[k]]
            if mark[e] != p:
                mark[e] = p
                load[e] += table.duration[t]
    if len(seq) % stride == 0:
        loads[len(seq) // stride] = load
    loads[-1] = load
    return loads

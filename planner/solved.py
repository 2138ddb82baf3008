"""What the delta simulation keeps in flat arrays: tasks, when they run, a change of them, and room for proposals.

Its functions are compiled where they can be. It does not know how a change is timed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Into how many stretches a proposal may fall apart at most.
NUM_SKIPS = 1024
# How many distances in time are kept in mind at once.
NUM_SHIFTS = 4
# Loads of engines are kept for every place that is a multiple of it, or of the number of engines.
STRIDE = 256


class Rows(NamedTuple):
    """Tasks in rows: that of number t in row t, then those that a change brings.

    Lanes and needs of row t lie between lane_lo[t] and lane_hi[t], need_lo[t] and need_hi[t].
    """

    order: np.ndarray
    lasts: np.ndarray
    lane_lo: np.ndarray
    lane_hi: np.ndarray
    lanes: np.ndarray
    need_lo: np.ndarray
    need_hi: np.ndarray
    needs: np.ndarray


class Solved(NamedTuple):
    """When the tasks run.

    seq, ready, end, high           by place in the sequence as served: the task, when it is ready, when it ends, and
                                    the last end up to there
    pos                             by number: the task's place, or -1
    follow_lo, follow_hi, follows   by number: where in `follows` those begin and end that need the task
    num_roots                       how many tasks need none; they are served first
    loads                           by every so many places: what each engine has done before; at last, what in all
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
    """A change: places of tasks that go (sorted), numbers of those that come, which lie in rows from `size` on.

    gone, row_of       by number: whether the task goes, and the row of the one that comes, or -1
    head, link_row     by row the first entry of the list of those that come and need it, -1 for none; the row of each
    link               entry, and the next
    """

    size: int
    changed: np.ndarray
    number: np.ndarray
    gone: np.ndarray
    row_of: np.ndarray
    head: np.ndarray
    link: np.ndarray
    link_row: np.ndarray


class Work(NamedTuple):
    """Room for a proposal.

    By row: the epoch in which it was served, and when it ended; the epoch since which its waits are counted, how many,
    and how long they last at least. A heap over (key, rank). What comes and is not served. By engine: when it is free,
    what it has still to do, and a mark. By distance in time, and at last for all tasks: the distance, when it was used,
    and the last ends of what has another, before and now. What was served one by one; and what was skipped: after how
    many of these, from which place to which, at which distance.
    """

    served: np.ndarray
    done: np.ndarray
    touched: np.ndarray
    waits: np.ndarray
    part: np.ndarray
    key: np.ndarray
    rank: np.ndarray
    heap: np.ndarray
    fresh: np.ndarray
    unserved: np.ndarray
    free: np.ndarray
    left: np.ndarray
    mark: np.ndarray
    shifts: np.ndarray
    used: np.ndarray
    stray_old: np.ndarray
    stray_new: np.ndarray
    out_row: np.ndarray
    out_ready: np.ndarray
    out_end: np.ndarray
    skips: np.ndarray


def empty(num_engines: int) -> tuple[Rows, Solved]:
    """No task."""
    wide, narrow = np.zeros(0, np.int64), np.zeros(0, np.int32)
    rows = Rows(wide, wide, narrow, narrow, narrow, narrow, narrow, narrow)
    loads = np.zeros((2, num_engines), np.int64)
    return rows, Solved(narrow, narrow, wide, wide, wide, narrow, narrow, narrow, 0, loads)


def room(num_rows: int, num_engines: int) -> tuple[Patch, Work]:
    """Room for changes that lead to at most so many rows: no task goes, comes, or is needed by one that comes."""

    def wide(length: int = num_rows) -> np.ndarray:
        return np.zeros(length, np.int64)

    def narrow(length: int = num_rows) -> np.ndarray:
        return np.zeros(length, np.int32)

    none, nothing = np.full(num_rows, -1, np.int32), narrow(0)
    patch = Patch(0, nothing, nothing, np.zeros(num_rows, np.bool_), none, none.copy(), nothing, nothing)
    return patch, Work(
        wide(), wide(), wide(), narrow(), wide(), wide(num_rows + 1), wide(num_rows + 1), narrow(num_rows + 1),
        narrow(), narrow(), wide(num_engines), wide(num_engines), wide(num_engines), wide(NUM_SHIFTS + 1),
        wide(NUM_SHIFTS + 1), wide(NUM_SHIFTS + 1), wide(NUM_SHIFTS + 1), narrow(), wide(), wide(),
        np.zeros((NUM_SKIPS, 4), np.int64),
    )  # fmt: skip


def resolve(first, removed, rows, solved, patch):  # type: ignore[no-untyped-def]
    """Turns the needs of tasks that come, entries from `first` on, from numbers to rows, and hangs each task into the
    lists of what it needs.
    """
    size, number = patch.size, patch.number
    for t in removed:
        assert 0 <= t < size and not patch.gone[t]
        patch.gone[t] = True
    for k in range(len(number)):
        assert patch.row_of[number[k]] < 0
        patch.row_of[number[k]] = size + k
    for t in removed:
        if patch.row_of[t] < 0:
            for k in range(solved.follow_lo[t], solved.follow_hi[t]):
                assert patch.gone[solved.follows[k]], "a task that stays needs one that goes"
    for row in range(size, size + len(number)):
        for k in range(rows.need_lo[row], rows.need_hi[row]):
            need = rows.needs[k]
            if patch.row_of[need] >= 0:
                rows.needs[k] = need = patch.row_of[need]
            else:
                assert not patch.gone[need], "a task that comes needs one that goes"
            patch.link[k - first], patch.link_row[k - first] = patch.head[need], row
            patch.head[need] = k - first


def joined(seq, ready, end, out_row, out_ready, out_end, skips):  # type: ignore[no-untyped-def]
    """The rows in the order served, when each is ready and ends: what was served one by one, and what was skipped."""
    num_tasks = len(out_row)
    for s in range(len(skips)):
        num_tasks += skips[s, 2] - skips[s, 1]
    row_seq, new_ready = np.empty(num_tasks, np.int32), np.empty(num_tasks, np.int64)
    new_end, high = np.empty(num_tasks, np.int64), np.empty(num_tasks, np.int64)
    place, out, last = 0, 0, np.int64(0)
    for s in range(len(skips) + 1):
        stop = skips[s, 0] if s < len(skips) else len(out_row)
        while out < stop:
            row_seq[place], new_ready[place], new_end[place] = out_row[out], out_ready[out], out_end[out]
            place, out = place + 1, out + 1
        if s < len(skips):
            for p in range(skips[s, 1], skips[s, 2]):
                row_seq[place], new_ready[place], new_end[place] = seq[p], ready[p] + skips[s, 3], end[p] + skips[s, 3]
                place += 1
    for p in range(num_tasks):
        last = max(last, new_end[p])
        high[p] = last
    return row_seq, new_ready, new_end, high


def renumbered(size, old_size, number, row_seq, rows):  # type: ignore[no-untyped-def]
    """Rows below `size` by number, packed in the order served with room for half as many again, and the sequence.

    Also how many lanes and needs there are.
    """
    num_tasks, num_lanes, num_needs = len(row_seq), 0, 0
    for row in row_seq:
        num_lanes += rows.lane_hi[row] - rows.lane_lo[row]
        num_needs += rows.need_hi[row] - rows.need_lo[row]
    seq, space = np.empty(num_tasks, np.int32), size + size // 2
    order, lasts = np.zeros(space, np.int64), np.zeros(space, np.int64)
    lane_lo, lane_hi = np.zeros(space, np.int32), np.zeros(space, np.int32)
    need_lo, need_hi = np.zeros(space, np.int32), np.zeros(space, np.int32)
    lanes = np.empty(num_lanes + num_lanes // 2, np.int32)
    needs = np.empty(num_needs + num_needs // 2, np.int32)
    num_lanes, num_needs = 0, 0
    for p in range(num_tasks):
        row = row_seq[p]
        t = row if row < old_size else number[row - old_size]
        seq[p], order[t], lasts[t], lane_lo[t], need_lo[t] = t, rows.order[row], rows.lasts[row], num_lanes, num_needs
        for k in range(rows.lane_lo[row], rows.lane_hi[row]):
            lanes[num_lanes] = rows.lanes[k]
            num_lanes += 1
        for k in range(rows.need_lo[row], rows.need_hi[row]):
            need = rows.needs[k]
            needs[num_needs] = need if need < old_size else number[need - old_size]
            num_needs += 1
        lane_hi[t], need_hi[t] = num_lanes, num_needs
    return seq, (order, lasts, lane_lo, lane_hi, lanes, need_lo, need_hi, needs), num_lanes, num_needs


def followed(size, num_needs, seq, rows):  # type: ignore[no-untyped-def]
    """Of each number its place and its followers, and how many tasks need none."""
    pos, follow_lo, follow_hi = np.full(size, -1, np.int32), np.zeros(size, np.int32), np.zeros(size, np.int32)
    follows, total, num_roots = np.empty(num_needs, np.int32), 0, 0
    for k in range(num_needs):
        follow_hi[rows.needs[k]] += 1
    for p in range(len(seq)):
        t = seq[p]
        pos[t], follow_lo[t], follow_hi[t], total = p, total, total, total + follow_hi[t]
        num_roots += rows.need_lo[t] == rows.need_hi[t]
    for p in range(len(seq)):
        t = seq[p]
        for k in range(rows.need_lo[t], rows.need_hi[t]):
            need = rows.needs[k]
            follows[follow_hi[need]] = t
            follow_hi[need] += 1
    return pos, follow_lo, follow_hi, follows, num_roots


def loaded(num_engines, engine, seq, rows):  # type: ignore[no-untyped-def]
    """What each engine has done before every so many places, and at last in all."""
    stride = max(STRIDE, num_engines)
    loads = np.zeros((len(seq) // stride + 2, num_engines), np.int64)
    load, mark = np.zeros(num_engines, np.int64), np.full(num_engines, -1, np.int64)
    for p in range(len(seq)):
        if p % stride == 0:
            loads[p // stride] = load
        t = seq[p]
        for k in range(rows.lane_lo[t], rows.lane_hi[t]):
            e = engine[rows.lanes[k]]
            if mark[e] != p:
                mark[e] = p
                load[e] += rows.lasts[t]
    if len(seq) % stride == 0:
        loads[len(seq) // stride] = load
    loads[-1] = load
    return loads

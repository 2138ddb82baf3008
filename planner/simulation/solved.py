"""What the delta simulation keeps in flat arrays: tasks, when they run, a change of them, and room for proposals.

Its functions are compiled where they can be. It does not know how a change is timed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Into how many stretches a proposal may fall apart at most.
NUM_SKIPS = 1024
# Loads of engines are kept for every place that is a multiple of it, or of the number of engines.
STRIDE = 256
# What becomes of a number: its task stays, goes, or comes where none was; one that goes and comes is both.
STAYS, GOES, COMES = 0, 1, 2


class Rows(NamedTuple):
    """Tasks by number; lanes and needs of t lie between lane_lo[t] and lane_hi[t], need_lo[t] and need_hi[t]."""

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
    """A change: places of tasks that go (sorted), and numbers of those that come.

    fate            by number: whether its task goes and comes
    came            by number the first entry of the list of those that come and need it, -1 for none
    link, link_to   of each entry the next one, and who it is that comes
    """

    changed: np.ndarray
    number: np.ndarray
    fate: np.ndarray
    came: np.ndarray
    link: np.ndarray
    link_to: np.ndarray


class Work(NamedTuple):
    """Room for a proposal.

    By number: the epoch in which it was served, and when it ended; the stretch since which its waits are counted, how
    many, and when it is ready. What comes and is not served; what was served one by one. By engine: when it is free,
    what it has still to do, and a mark. And what was skipped: after how many that were served one by one, from which
    place to which, at which distance.
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


def empty(num_engines: int) -> tuple[Rows, Solved]:
    """No task."""
    wide, narrow = np.zeros(0, np.int64), np.zeros(0, np.int32)
    rows = Rows(wide, wide, narrow, narrow, narrow, narrow, narrow, narrow)
    loads = np.zeros((2, num_engines), np.int64)
    return rows, Solved(narrow, narrow, wide, wide, wide, narrow, narrow, narrow, 0, loads)


def room(num_tasks: int, num_engines: int) -> tuple[Patch, Work]:
    """Room for numbers below `num_tasks`: no task goes, comes, or is needed by one that comes."""

    def wide(length: int = num_tasks) -> np.ndarray:
        return np.zeros(length, np.int64)

    def narrow(length: int = num_tasks) -> np.ndarray:
        return np.zeros(length, np.int32)

    nothing = narrow(0)
    patch = Patch(nothing, nothing, np.zeros(num_tasks, np.int8), np.full(num_tasks, -1, np.int32), nothing, nothing)
    work = Work(
        wide(), wide(), wide(), narrow(), wide(), narrow(), narrow(), wide(num_engines), wide(num_engines),
        wide(num_engines), np.zeros((NUM_SKIPS, 4), np.int64),
    )  # fmt: skip
    return patch, work


def resolve(first, removed, come, engine, rows, solved, patch, work):  # type: ignore[no-untyped-def]
    """Tasks go, and others come, which hang in the lists of what they need; engines have still to do all of that.

    come    the rows of those that come, which change places with what was there; entries of needs begin at `first`
    """
    for e in range(len(work.left)):
        work.left[e], work.mark[e] = solved.loads[len(solved.loads) - 1, e], -1
    for i in range(len(removed)):
        t = removed[i]
        assert solved.pos[t] >= 0 and patch.fate[t] == STAYS
        patch.fate[t] = GOES
        load(t, -2 - i, -1, engine, rows, work)
    exchange(patch.number, come, rows)
    for i in range(len(patch.number)):
        t = patch.number[i]
        assert patch.fate[t] < COMES
        patch.fate[t] += COMES
        load(t, -2 - len(removed) - i, 1, engine, rows, work)
    for t in removed:
        if patch.fate[t] == GOES:
            for k in range(solved.follow_lo[t], solved.follow_hi[t]):
                assert patch.fate[solved.follows[k]] != STAYS, "a task that stays needs one that goes"
    for t in patch.number:
        for k in range(rows.need_lo[t], rows.need_hi[t]):
            need = rows.needs[k]
            assert patch.fate[need] != GOES, "a task that comes needs one that goes"
            patch.link[k - first], patch.link_to[k - first], patch.came[need] = patch.came[need], t, k - first


def exchange(number, come, rows):  # type: ignore[no-untyped-def]
    """The rows of these numbers change places with others."""
    for i in range(len(number)):
        t = number[i]
        rows.order[t], come.order[i] = come.order[i], rows.order[t]
        rows.lasts[t], come.lasts[i] = come.lasts[i], rows.lasts[t]
        rows.lane_lo[t], come.lane_lo[i] = come.lane_lo[i], rows.lane_lo[t]
        rows.lane_hi[t], come.lane_hi[i] = come.lane_hi[i], rows.lane_hi[t]
        rows.need_lo[t], come.need_lo[i] = come.need_lo[i], rows.need_lo[t]
        rows.need_hi[t], come.need_hi[i] = come.need_hi[i], rows.need_hi[t]


def load(task, token, sign, engine, rows, work):  # type: ignore[no-untyped-def]
    """The engines of a task have it more to do, or less; the token is another for every call."""
    for k in range(rows.lane_lo[task], rows.lane_hi[task]):
        e = engine[rows.lanes[k]]
        if work.mark[e] != token:
            work.mark[e] = token
            work.left[e] += sign * rows.lasts[task]


def joined(seq, ready, end, out, new_ready, new_end, skips):  # type: ignore[no-untyped-def]
    """The sequence as served, when each task is ready and ends: what was served one by one, and what was skipped."""
    num_tasks = len(out)
    for s in range(len(skips)):
        num_tasks += skips[s, 2] - skips[s, 1]
    all_seq, all_ready = np.empty(num_tasks, np.int32), np.empty(num_tasks, np.int64)
    all_end, high = np.empty(num_tasks, np.int64), np.empty(num_tasks, np.int64)
    place, k, last = 0, 0, np.int64(0)
    for s in range(len(skips) + 1):
        stop = skips[s, 0] if s < len(skips) else len(out)
        while k < stop:
            t = out[k]
            all_seq[place], all_ready[place], all_end[place] = t, new_ready[t], new_end[t]
            place, k = place + 1, k + 1
        if s < len(skips):
            for p in range(skips[s, 1], skips[s, 2]):
                all_seq[place], all_ready[place], all_end[place] = seq[p], ready[p] + skips[s, 3], end[p] + skips[s, 3]
                place += 1
    for p in range(num_tasks):
        last = max(last, all_end[p])
        high[p] = last
    return all_seq, all_ready, all_end, high


def packed(size, seq, rows):  # type: ignore[no-untyped-def]
    """The rows of these tasks alone, in the order served, with room for half as many; how many lanes and needs."""
    num_lanes, num_needs, space = 0, 0, size + size // 2
    for t in seq:
        num_lanes += rows.lane_hi[t] - rows.lane_lo[t]
        num_needs += rows.need_hi[t] - rows.need_lo[t]
    order, lasts = np.zeros(space, np.int64), np.zeros(space, np.int64)
    lane_lo, lane_hi = np.zeros(space, np.int32), np.zeros(space, np.int32)
    need_lo, need_hi = np.zeros(space, np.int32), np.zeros(space, np.int32)
    lanes = np.empty(num_lanes + num_lanes // 2, np.int32)
    needs = np.empty(num_needs + num_needs // 2, np.int32)
    num_lanes, num_needs = 0, 0
    for t in seq:
        order[t], lasts[t], lane_lo[t], need_lo[t] = rows.order[t], rows.lasts[t], num_lanes, num_needs
        for k in range(rows.lane_lo[t], rows.lane_hi[t]):
            lanes[num_lanes] = rows.lanes[k]
            num_lanes += 1
        for k in range(rows.need_lo[t], rows.need_hi[t]):
            needs[num_needs] = rows.needs[k]
            num_needs += 1
        lane_hi[t], need_hi[t] = num_lanes, num_needs
    return (order, lasts, lane_lo, lane_hi, lanes, need_lo, need_hi, needs), num_lanes, num_needs


def followed(size, num_needs, seq, rows):  # type: ignore[no-untyped-def]
    """Of each number its place and its followers, with room for half as many, and how many tasks need none."""
    size += size // 2
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

"""The loop of the delta simulation: what a change moves is timed again, the rest is skipped.

It is compiled where it can be, and knows arrays only: which tasks these are and where changes come from is not told.
"""

from __future__ import annotations

import numpy as np

from castile.planner.serving import NEVER
from castile.planner.solved import NUM_SHIFTS, NUM_SKIPS, STRIDE


def retime(limit, epoch, engine, rows, solved, patch, work):  # type: ignore[no-untyped-def]
    """The step after a change: its length (-1: more than `limit`), how many tasks were served one by one and how many
    stretches were skipped, how many tasks the step has, and the next epoch.

    Tasks that stay end at a distance from when they ended before. For each of a few distances, all tasks with another
    and those that come or go are stray: they matter no more when they have ended before anything that is still to come
    gets ready, in both simulations. Then all else is as it was, at that distance.
    """
    mine, stretch, num_unserved = epoch + 1, epoch + 1, len(patch.number)
    prepare(engine, rows, solved, patch, work)
    # All that stays before place `cursor` was skipped, at distance `skipped`, or bears `mine`; nothing that was served
    # and stays lies at `place` or behind. Of these places as many as `num_lost` went for good.
    cursor, skipped, place, num_kept, num_lost, passed, next_try = 0, 0, 0, 0, 0, 0, 0
    num_heap, num_fresh, num_out, num_skips, num_served, longest = 0, 0, 0, 0, 0, 0
    finish, shift, resumed = 0, 0, True
    while True:
        passed, num_lost = go_past(passed, num_lost, place, solved, patch, work)
        found = -1
        if place >= next_try and num_kept == place - num_lost and num_skips < NUM_SKIPS:
            found = matching(place, solved, work)
        if found >= 0:
            shift = work.shifts[found]
            stop, num_unserved = reach(
                place, passed, shift, cursor, skipped, mine, num_unserved, rows, solved, patch, work
            )
            next_try = stop + 1
            # Each stretch costs about as much as a few tasks that come.
            if stop > place and (resumed or stop == len(solved.seq) or 4 * (stop - place) > num_unserved):
                longest = max(longest, skip(place, stop, shift, num_skips, num_out, engine, rows, solved, work))
                num_skips, num_served, num_kept = num_skips + 1, num_served + stop - place, num_kept + stop - place
                place, cursor, skipped, resumed = stop, stop, shift, True
        if resumed:
            stretch, num_heap = stretch + 1, 0
            since = solved.ready[place - 1] + shift if place > 0 else 0
            # Nothing that is still to come begins before.
            if longest > limit or heaviest(work) > limit - since:
                return -1, num_out, 0, 0, max(mine, stretch)
            num_fresh = resume(place, shift, stretch, num_unserved, engine, rows, solved, patch, work)
        num_heap = touch(
            num_fresh, num_heap, resumed, finish, stretch, mine, cursor, skipped, rows, solved, patch, work
        )  # fmt: skip
        if num_heap == 0:
            return longest, num_out, num_skips, num_served, max(mine, stretch)
        num_heap, resumed = num_heap - 1, False
        task, when = pop(num_heap, work)
        finish = occupy(task, when, limit, engine, rows, work)
        if finish < 0:
            return -1, num_out, 0, 0, max(mine, stretch)
        work.served[task], work.done[task] = mine, finish
        work.out_row[num_out], work.out_ready[num_out], work.out_end[num_out] = task, when, finish
        num_out, num_served, longest = num_out + 1, num_served + 1, max(longest, finish)
        compare(task, finish, num_served, solved, patch, work)
        number = task if task < patch.size else patch.number[task - patch.size]
        if number < patch.size and solved.pos[number] >= 0:
            num_kept, place = num_kept + 1, max(place, solved.pos[number] + 1)
        num_fresh = follow(task, number, solved, patch, work)


def prepare(engine, rows, solved, patch, work):  # type: ignore[no-untyped-def]
    """Nothing is served; every engine has still to do what it does after the change."""
    size, num_changed, num_created = patch.size, len(patch.changed), len(patch.number)
    for c in range(NUM_SHIFTS + 1):
        work.shifts[c], work.used[c], work.stray_old[c], work.stray_new[c] = 0, 0, -1, -1
    for e in range(len(work.left)):
        work.left[e], work.mark[e] = solved.loads[len(solved.loads) - 1, e], -1
    for k in range(num_changed + num_created):
        t = solved.seq[patch.changed[k]] if k < num_changed else size + k - num_changed
        for j in range(rows.lane_lo[t], rows.lane_hi[t]):
            e = engine[rows.lanes[j]]
            if work.mark[e] != k:
                work.mark[e] = k
                work.left[e] += -rows.lasts[t] if k < num_changed else rows.lasts[t]
    for k in range(num_created):
        work.unserved[k] = size + k


def go_past(passed, num_lost, place, solved, patch, work):  # type: ignore[no-untyped-def]
    """What goes or changes before `place` was stray; how many these are, and how many of them went for good."""
    while passed < len(patch.changed) and patch.changed[passed] < place:
        p = patch.changed[passed]
        for c in range(NUM_SHIFTS + 1):
            work.stray_old[c] = max(work.stray_old[c], solved.end[p])
        num_lost += patch.row_of[solved.seq[p]] < 0
        passed += 1
    return passed, num_lost


def matching(place, solved, work):  # type: ignore[no-untyped-def]
    """A distance at which all is as it was at `place`, with nothing stray under way; -1 where there is none."""
    if place == 0:
        return 0
    since = solved.ready[place - 1]
    for c in range(NUM_SHIFTS):
        shift = work.shifts[c]
        if work.stray_old[c] < since and work.stray_new[c] <= since + shift:
            # What needs nothing is ready at the beginning, at whatever distance the rest is.
            if shift == 0 or place >= solved.num_roots:
                return c
    return -1


def reach(  # type: ignore[no-untyped-def]
    place, passed, shift, cursor, skipped, mine, num_unserved, rows, solved, patch, work
):
    """The place up to which all is as it was, that of the first task that goes or comes; and what is to come."""
    stop, num_open = patch.changed[passed] if passed < len(patch.changed) else len(solved.seq), 0
    for i in range(num_unserved):
        t, when = work.unserved[i], 0
        if work.served[t] == mine:
            continue
        work.unserved[num_open] = t
        num_open += 1
        for k in range(rows.need_lo[t], rows.need_hi[t]):
            need = rows.needs[k]
            if work.served[need] == mine:
                when = max(when, work.done[need])
            elif need >= patch.size:
                when = NEVER
                break
            else:
                p = solved.pos[need]
                when = max(when, solved.end[p] + (skipped if p < cursor else shift))
        low = place
        while when < NEVER and low < stop:
            half = (low + stop) >> 1
            before = solved.ready[half] + shift
            if before < when or (before == when and rows.order[solved.seq[half]] < rows.order[t]):
                low = half + 1
            else:
                stop = half
    return stop, num_open


def skip(place, stop, shift, num_skips, num_out, engine, rows, solved, work):  # type: ignore[no-untyped-def]
    """All from `place` to `stop` is as it was, at a distance; when the last of it ends."""
    work.skips[num_skips, 0], work.skips[num_skips, 1] = num_out, place
    work.skips[num_skips, 2], work.skips[num_skips, 3] = stop, shift
    stride = max(STRIDE, len(work.free))
    for side in range(2):
        bound, sign = (place, 1) if side == 0 else (stop, -1)
        for e in range(len(work.left)):
            work.left[e], work.mark[e] = work.left[e] + sign * solved.loads[bound // stride, e], -1
        for p in range(bound // stride * stride, bound):
            t = solved.seq[p]
            for k in range(rows.lane_lo[t], rows.lane_hi[t]):
                e = engine[rows.lanes[k]]
                if work.mark[e] != t:
                    work.mark[e] = t
                    work.left[e] += sign * rows.lasts[t]
    last, latest = solved.high[stop - 1], np.int64(0)
    for c in range(NUM_SHIFTS + 1):
        if c == NUM_SHIFTS or work.shifts[c] != shift:
            work.stray_old[c] = max(work.stray_old[c], last)
            work.stray_new[c] = max(work.stray_new[c], last + shift)
    for p in range(place, stop):
        latest = max(latest, solved.end[p])
    return latest + shift


def heaviest(work):  # type: ignore[no-untyped-def]
    """The most that an engine has still to do."""
    most = 0
    for e in range(len(work.left)):
        most = max(most, work.left[e])
    return most


def resume(place, shift, stretch, num_unserved, engine, rows, solved, patch, work):  # type: ignore[no-untyped-def]
    """What is under way at `place` occupies its engines; what may wait for that, or has come, is fresh."""
    for e in range(len(work.free)):
        work.free[e] = 0
    num_fresh, low, stop, since = 0, 0, place, solved.ready[place - 1] if place > 0 else 0
    while low < stop:
        half = (low + stop) >> 1
        if solved.high[half] < since:
            low = half + 1
        else:
            stop = half
    for p in range(low, place):
        if solved.end[p] >= since:
            t = solved.seq[p]
            for k in range(rows.lane_lo[t], rows.lane_hi[t]):
                e = engine[rows.lanes[k]]
                work.free[e] = max(work.free[e], solved.end[p] + shift)
            for k in range(solved.follow_lo[t], solved.follow_hi[t]):
                u = solved.follows[k]
                if solved.pos[u] >= place and not patch.gone[u] and work.touched[u] != stretch:
                    work.touched[u] = stretch
                    work.fresh[num_fresh] = u
                    num_fresh += 1
    for p in range(place, solved.num_roots):
        if not patch.gone[solved.seq[p]]:
            work.fresh[num_fresh] = solved.seq[p]
            num_fresh += 1
    for i in range(num_unserved):
        work.fresh[num_fresh] = work.unserved[i]
        num_fresh += 1
    return num_fresh


def touch(  # type: ignore[no-untyped-def]
    num_fresh, num_heap, resumed, finish, stretch, mine, cursor, skipped, rows, solved, patch, work
):
    """Each fresh task waits for one less, or is looked at for the first time; those that wait no more are pushed."""
    for i in range(num_fresh):
        t = work.fresh[i]
        if not resumed and work.touched[t] == stretch:
            work.waits[t] -= 1
            work.part[t] = max(work.part[t], finish)
        else:
            waits, part = 0, np.int64(0)
            for k in range(rows.need_lo[t], rows.need_hi[t]):
                need = rows.needs[k]
                if need < patch.size and patch.gone[need]:
                    need = patch.row_of[need]
                if work.served[need] == mine:
                    part = max(part, work.done[need])
                elif need < patch.size and solved.pos[need] < cursor:
                    part = max(part, solved.end[solved.pos[need]] + skipped)
                else:
                    waits += 1
            work.touched[t], work.waits[t], work.part[t] = stretch, waits, part
        if work.waits[t] == 0:
            when, by, hole = work.part[t], rows.order[t], num_heap
            num_heap += 1
            while hole > 0:
                up = (hole - 1) >> 1
                if work.key[up] < when or (work.key[up] == when and work.rank[up] < by):
                    break
                work.key[hole], work.rank[hole], work.heap[hole] = work.key[up], work.rank[up], work.heap[up]
                hole = up
            work.key[hole], work.rank[hole], work.heap[hole] = when, by, t
    return num_heap


def pop(num_heap, work):  # type: ignore[no-untyped-def]
    """The least entry of a heap, which has so many others, and when it is ready."""
    key, rank, heap = work.key, work.rank, work.heap
    task, when = heap[0], key[0]
    last, last_key, last_rank, hole, low = heap[num_heap], key[num_heap], rank[num_heap], 0, 1
    while low < num_heap:
        if low + 1 < num_heap:
            low += (key[low + 1] < key[low]) | ((key[low + 1] == key[low]) & (rank[low + 1] < rank[low]))
        if last_key < key[low] or (last_key == key[low] and last_rank < rank[low]):
            break
        key[hole], rank[hole], heap[hole], hole = key[low], rank[low], heap[low], low
        low = 2 * hole + 1
    key[hole], rank[hole], heap[hole] = last_key, last_rank, last
    return task, when


def occupy(task, when, limit, engine, rows, work):  # type: ignore[no-untyped-def]
    """When a task ends that is ready; -1 where it, or what its engines have still to do, cannot end in time."""
    begin, late = when, False
    for k in range(rows.lane_lo[task], rows.lane_hi[task]):
        begin = max(begin, work.free[engine[rows.lanes[k]]])
    finish = begin + rows.lasts[task]
    for k in range(rows.lane_lo[task], rows.lane_hi[task]):
        e = engine[rows.lanes[k]]
        # Two lanes of a task on one engine count once: the first of them makes it busy.
        if work.free[e] < finish:
            late |= work.left[e] > limit - begin
            work.left[e] -= rows.lasts[task]
            work.free[e] = finish
    return -1 if late or finish > limit else finish


def compare(task, finish, now, solved, patch, work):  # type: ignore[no-untyped-def]
    """A task that was served is stray for every distance but its own."""
    if task < patch.size:
        ended, known, oldest = solved.end[solved.pos[task]], False, 0
        for c in range(NUM_SHIFTS):
            if work.shifts[c] == finish - ended:
                known, work.used[c] = True, now
            else:
                work.stray_old[c] = max(work.stray_old[c], ended)
                work.stray_new[c] = max(work.stray_new[c], finish)
                oldest = c if work.used[c] < work.used[oldest] else oldest
        if not known:
            work.shifts[oldest], work.used[oldest] = finish - ended, now
            work.stray_old[oldest], work.stray_new[oldest] = work.stray_old[-1], work.stray_new[-1]
        work.stray_old[-1] = max(work.stray_old[-1], ended)
    else:
        for c in range(NUM_SHIFTS):
            work.stray_new[c] = max(work.stray_new[c], finish)
    work.stray_new[-1] = max(work.stray_new[-1], finish)


def follow(task, number, solved, patch, work):  # type: ignore[no-untyped-def]
    """All that needs a task, of those that stay and those that come, is fresh."""
    num_fresh = 0
    if number < patch.size:
        for k in range(solved.follow_lo[number], solved.follow_hi[number]):
            if not patch.gone[solved.follows[k]]:
                work.fresh[num_fresh] = solved.follows[k]
                num_fresh += 1
    entry = patch.head[task]
    while entry >= 0:
        work.fresh[num_fresh] = patch.link_row[entry]
        num_fresh, entry = num_fresh + 1, patch.link[entry]
    return num_fresh


PARTS = (prepare, go_past, matching, reach, skip, heaviest, resume, touch, pop, occupy, compare, follow)

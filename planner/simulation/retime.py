"""The loop of the delta simulation: what a change moves is timed again, the rest is skipped.

It is compiled where it can be, and knows arrays only: which tasks these are and where changes come from is not told.
"""

from __future__ import annotations

from castile.planner.simulation.agenda import NEVER, opened, put, take
from castile.planner.simulation.solved import COMES, GOES, NUM_SKIPS, STAYS, STRIDE, load

# How the march from task to task ends: all are served, the step is too long, or the rest may be as it was.
ENDED, LATE, ALIKE = 0, 1, 2
# So many tasks at most must end at another distance than the others did before it is theirs that counts.
MOST_VOTES = 64


def retime(limit, epoch, width, engine, rows, solved, patch, agenda, work):  # type: ignore[no-untyped-def]
    """The step after a change: its length (-1: more than `limit`), how many tasks were served one by one and how many
    stretches were skipped, how many tasks the step has, and the next epoch.

    Tasks that stay end at a distance from when they ended before. All with another distance than most, and those that
    come or go, are stray: they matter no more when they have ended before anything that is still to come gets ready, in
    both simulations. Then all else is as it was, at that distance. Buckets of the agenda are 2**width picoseconds wide.
    """
    mine, stretch, num_unserved = epoch + 1, epoch + 1, len(patch.number)
    for k in range(num_unserved):
        work.unserved[k] = patch.number[k]
    # All that stays before place `cursor` was skipped, at distance `skipped`, or bears `mine`.
    cursor, skipped, num_skips, num_served, is_new = 0, 0, 0, 0, True
    place, num_kept, num_lost, passed, num_out, longest, shift, all_old = 0, 0, 0, 0, 0, 0, 0, -1
    at = (place, num_kept, num_lost, passed, num_out, longest, shift, 0, -1, -1, all_old, 0, 0, 0, 0, 0, width, 0)
    while True:
        stop, num_unserved = reach(
            place, passed, shift, cursor, skipped, mine, num_unserved, rows, solved, patch, work
        )  # fmt: skip
        # To skip a stretch costs about as much as a few tasks that come, and the agenda is cleared.
        least = (num_unserved + (len(agenda.first) >> 6)) // 4
        if stop > place and (is_new or stop == len(solved.seq) or stop - place > least):
            latest = skip(place, stop, shift, num_skips, num_out, engine, rows, solved, work)
            longest, all_old = max(longest, latest), max(all_old, solved.high[stop - 1])
            num_skips, num_served, num_kept = num_skips + 1, num_served + stop - place, num_kept + stop - place
            place, cursor, skipped, is_new = stop, stop, shift, True
        if is_new:
            is_new, stretch = False, stretch + 1
            base = solved.ready[place - 1] + shift if place > 0 else 0
            # Nothing that is still to come begins before.
            if longest > limit or heaviest(work) > limit - base:
                return -1, num_out, 0, 0, max(mine, stretch)
            for b in range(at[14], len(agenda.first)):
                agenda.first[b] = -1
            num_fresh = resume(
                place, shift, stretch, mine, cursor, num_unserved, engine, rows, solved, patch, agenda, work
            )
            so_far = (place, num_kept, num_lost, passed, num_out, longest)
            at = so_far + at[6:10] + (all_old, 0, 0, 0, 0, base, width, num_fresh)
        next_try = stop + 1 if num_skips < NUM_SKIPS else NEVER
        how, at = march(at, limit, next_try, mine, stretch, cursor, skipped, engine, rows, solved, patch, agenda, work)
        place, num_kept, num_lost, passed, num_out, longest, shift = at[:7]
        all_old = at[10]
        if how != ALIKE:
            return longest if how == ENDED else -1, num_out, num_skips, num_served + num_out, max(mine, stretch)


def march(  # type: ignore[no-untyped-def]
    at, limit, next_try, mine, stretch, cursor, skipped, engine, rows, solved, patch, agenda, work
):
    """Serves tasks one by one until the step has ended, is late, or what follows may be as it was.

    Nothing that was served and stays lies at `place` or behind; of these places `num_lost` went for good.
    """
    place, num_kept, num_lost, passed, num_out, longest, shift, votes, stray_old, stray_new, all_old = at[:11]
    size, head, stop, bucket, base, width, num_fresh = at[11:]
    first, last, chain, row, heap, fresh = agenda
    order, lasts, lane_lo, lane_hi, lanes, need_lo, need_hi, needs = rows
    _, pos, was_ready, was_end, _, follow_lo, follow_hi, follows, num_roots, _ = solved
    served, done, touched, waits, ready, _, out, free, left = work[:9]
    changed, _, fate, came, link, link_to = patch
    how = ALIKE
    while True:
        size, stop = put(
            num_fresh, size, head, stop, bucket, base, width, first, last, chain, row, heap, fresh, ready, order
        )
        num_fresh = 0
        if place >= next_try and num_kept == place - num_lost:
            since = was_ready[place - 1]
            # What needs nothing is ready at the beginning, at whatever distance the rest is.
            if stray_old < since and stray_new <= since + shift and (shift == 0 or place >= num_roots):
                break
        if head == stop and size == 0:
            num_fresh, bucket, base, width = opened(bucket, base, width, first, chain, fresh, ready)
            if num_fresh == 0:
                how = ENDED
                break
            continue
        task, head, size = take(size, head, stop, row, heap, ready, order)
        begin, p = ready[task], pos[task]
        for k in range(lane_lo[task], lane_hi[task]):
            begin = max(begin, free[engine[lanes[k]]])
        finish = begin + lasts[task]
        late = finish > limit
        for k in range(lane_lo[task], lane_hi[task]):
            e = engine[lanes[k]]
            # Two lanes of a task on one engine count once: the first of them makes it busy.
            if free[e] < finish:
                late |= left[e] > limit - begin
                left[e], free[e] = left[e] - lasts[task], finish
        if late:
            how = LATE
            break
        served[task], done[task], out[num_out], num_out = mine, finish, task, num_out + 1
        num_fresh = follow(task, fate, follow_lo, follow_hi, follows, came, link, link_to, fresh)
        num_fresh = touch(
            num_fresh, finish, mine, stretch, cursor, skipped, need_lo, need_hi, needs, pos, was_end, fate, served,
            done, touched, waits, ready, fresh,
        )  # fmt: skip
        if fate[task] != STAYS:
            stray_new = max(stray_new, finish)
        else:
            shift, votes, stray_old, stray_new = compare(
                finish, was_end[p], shift, votes, stray_old, stray_new, all_old, longest
            )
            all_old = max(all_old, was_end[p])
        longest = max(longest, finish)
        if p >= 0:
            num_kept, place = num_kept + 1, max(place, p + 1)
            if passed < len(changed) and changed[passed] < place:
                passed, num_lost, gone = go_past(passed, num_lost, place, solved, patch)
                stray_old, all_old = max(stray_old, gone), max(all_old, gone)
    return how, (
        place, num_kept, num_lost, passed, num_out, longest, shift, votes, stray_old, stray_new, all_old,
        size, head, stop, bucket, base, width, num_fresh,
    )  # fmt: skip


def follow(task, fate, follow_lo, follow_hi, follows, came, link, link_to, fresh):  # type: ignore[no-untyped-def]
    """All that needs a task, of those that stay and those that come, is fresh: how many."""
    num_fresh, entry = 0, came[task]
    for k in range(follow_lo[task], follow_hi[task]):
        if not fate[follows[k]] & GOES:
            fresh[num_fresh] = follows[k]
            num_fresh += 1
    while entry >= 0:
        fresh[num_fresh], num_fresh, entry = link_to[entry], num_fresh + 1, link[entry]
    return num_fresh


def touch(  # type: ignore[no-untyped-def]
    num_fresh, finish, mine, stretch, cursor, skipped, need_lo, need_hi, needs, pos, was_end, fate, served, done,
    touched, waits, ready, fresh,
):  # fmt: skip
    """Each fresh task waits for one less, which ends at `finish`, or is looked at for the first time in this stretch;
    those that wait no more stay fresh: how many.
    """
    num_open = 0
    for f in range(num_fresh):
        t = fresh[f]
        if touched[t] == stretch:
            waits[t] -= 1
            ready[t] = max(ready[t], finish)
        else:
            count, when = 0, 0
            for k in range(need_lo[t], need_hi[t]):
                need = needs[k]
                if served[need] == mine:
                    when = max(when, done[need])
                elif fate[need] < COMES and pos[need] < cursor:
                    when = max(when, was_end[pos[need]] + skipped)
                else:
                    count += 1
            touched[t], waits[t], ready[t] = stretch, count, when
        if waits[t] == 0:
            fresh[num_open] = t
            num_open += 1
    return num_open


def compare(finish, ended, shift, votes, stray_old, stray_new, all_old, longest):  # type: ignore[no-untyped-def]
    """The distance of most tasks, and what is stray to it, with a task more that stays.

    A majority vote (Boyer, Moore, 1981); when it turns, all that came before is taken for stray.
    """
    if finish - ended == shift:
        return shift, min(votes + 1, MOST_VOTES), stray_old, stray_new
    if votes == 0:
        return finish - ended, 0, all_old, longest
    return shift, votes - 1, max(stray_old, ended), max(stray_new, finish)


def go_past(passed, num_lost, place, solved, patch):  # type: ignore[no-untyped-def]
    """What goes or changes before `place` was stray: how many these are, how many of them went for good, and the last
    end of those passed just now.
    """
    last = -1
    while passed < len(patch.changed) and patch.changed[passed] < place:
        p = patch.changed[passed]
        last, num_lost, passed = max(last, solved.end[p]), num_lost + (patch.fate[solved.seq[p]] == GOES), passed + 1
    return passed, num_lost, last


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
            elif patch.fate[need] >= COMES:
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
    stride, latest = max(STRIDE, len(work.free)), 0
    # Loads are known at every so many places; what lies before the first of them and after the last is counted.
    low, high = -(-place // stride), stop // stride
    if low < high:
        for e in range(len(work.left)):
            work.left[e] -= solved.loads[high, e] - solved.loads[low, e]
    for p in range(place, stop):
        latest = max(latest, solved.end[p])
        if low >= high or p < low * stride or p >= high * stride:
            load(solved.seq[p], p, -1, engine, rows, work)
    return latest + shift


def heaviest(work):  # type: ignore[no-untyped-def]
    """The most that an engine has still to do."""
    most = 0
    for e in range(len(work.left)):
        most = max(most, work.left[e])
    return most


def resume(  # type: ignore[no-untyped-def]
    place, shift, stretch, mine, cursor, num_unserved, engine, rows, solved, patch, agenda, work
):
    """What is under way at `place` occupies its engines; what may start after that is fresh: how many."""
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
                # Whom two of them make wait is fresh once.
                if solved.pos[u] >= place and not patch.fate[u] & GOES and work.touched[u] != -stretch:
                    work.touched[u] = -stretch
                    agenda.fresh[num_fresh] = u
                    num_fresh += 1
    for p in range(place, solved.num_roots):
        if not patch.fate[solved.seq[p]] & GOES:
            agenda.fresh[num_fresh] = solved.seq[p]
            num_fresh += 1
    for i in range(num_unserved):
        agenda.fresh[num_fresh] = work.unserved[i]
        num_fresh += 1
    return touch(
        num_fresh, 0, mine, stretch, cursor, shift, rows.need_lo, rows.need_hi, rows.needs, solved.pos, solved.end,
        patch.fate, work.served, work.done, work.touched, work.waits, work.ready, agenda.fresh,
    )  # fmt: skip


PARTS = (march, follow, touch, compare, go_past, reach, skip, heaviest, resume)

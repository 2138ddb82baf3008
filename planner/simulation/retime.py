"""The loop of the delta simulation: serves the tasks that a change moves, and skips stretches that it only shifts.

It is compiled where numba is installed, and works on arrays only. It does not know what tasks are, nor where changes
come from.
"""

from __future__ import annotations

from castile.planner.simulation.agenda import NEVER, opened, put, take
from castile.planner.simulation.delta_state import ADDED, KEPT, NUM_SKIPS, REMOVED, STRIDE, add_load

# Why serving one by one ends: all tasks are served, the step exceeds the limit, or the rest may equal the baseline but
# for a shift in time.
ALL_SERVED, TOO_LATE, IN_STEP = 0, 1, 2
# The most votes that a shift can have: so many tasks in a row with another shift outvote it.
MOST_VOTES = 64


def retime(limit, epoch, width, engine, table, baseline, patch, agenda, scratch):  # type: ignore[no-untyped-def]
    """Time the step after a change.

    limit   picoseconds
    epoch   a number that grows with every call, to tell what earlier calls left in `scratch`
    width   buckets of the agenda are 2**width picoseconds wide
    Returns the picoseconds of the step, or -1 if it exceeds `limit`; the number of tasks served one by one; the number
    of skipped stretches; the number of tasks of the step; and the next epoch.

    A kept task ends by some shift later or earlier than in the baseline. Tasks with another shift than most, added and
    removed tasks are stray. Once all stray tasks have ended before any unserved task gets ready, in the baseline and in
    the new schedule, the new schedule equals the baseline, but for the shift, up to the next change.
    """
    this_epoch, stretch, num_unserved = epoch + 1, epoch + 1, len(patch.added)
    for k in range(num_unserved):
        scratch.unserved[k] = patch.added[k]
    # Each kept task before position `cursor` was skipped with `skipped_shift`, or served in this epoch.
    cursor, skipped_shift, num_skips, num_served, is_new_stretch = 0, 0, 0, 0, True
    position, num_old, num_removed, num_passed, num_out, longest, shift, all_old = 0, 0, 0, 0, 0, 0, 0, -1
    state = (
        position, num_old, num_removed, num_passed, num_out, longest, shift, 0, -1, -1, all_old,
        0, 0, 0, 0, 0, width, 0,
    )  # fmt: skip
    while True:
        stop, num_unserved = first_change(
            position, num_passed, shift, cursor, skipped_shift, this_epoch, num_unserved, table, baseline, patch,
            scratch,
        )  # fmt: skip
        # Skipping a stretch costs about as much as serving a few added tasks, and clears the agenda.
        least = (num_unserved + (len(agenda.first) >> 6)) // 4
        if stop > position and (is_new_stretch or stop == len(baseline.seq) or stop - position > least):
            latest = skip_stretch(position, stop, shift, num_skips, num_out, engine, table, baseline, scratch)
            longest, all_old = max(longest, latest), max(all_old, baseline.high[stop - 1])
            num_skips, num_served, num_old = num_skips + 1, num_served + stop - position, num_old + stop - position
            position, cursor, skipped_shift, is_new_stretch = stop, stop, shift, True
        if is_new_stretch:
            is_new_stretch, stretch = False, stretch + 1
            base = baseline.ready[position - 1] + shift if position > 0 else 0
            # No unserved task begins before `base`.
            if longest > limit or most_work_left(scratch) > limit - base:
                return -1, num_out, 0, 0, max(this_epoch, stretch)
            for b in range(state[14], len(agenda.first)):
                agenda.first[b] = -1
            num_fresh = restart(
                position, shift, stretch, this_epoch, cursor, num_unserved, engine, table, baseline, patch, agenda,
                scratch,
            )  # fmt: skip
            so_far = (position, num_old, num_removed, num_passed, num_out, longest)
            state = so_far + state[6:10] + (all_old, 0, 0, 0, 0, base, width, num_fresh)
        earliest = stop + 1 if num_skips < NUM_SKIPS else NEVER
        outcome, state = serve_changed(
            state, limit, earliest, this_epoch, stretch, cursor, skipped_shift, engine, table, baseline, patch, agenda,
            scratch,
        )  # fmt: skip
        position, num_old, num_removed, num_passed, num_out, longest, shift = state[:7]
        all_old = state[10]
        if outcome != IN_STEP:
            length = longest if outcome == ALL_SERVED else -1
            return length, num_out, num_skips, num_served + num_out, max(this_epoch, stretch)


def serve_changed(  # type: ignore[no-untyped-def]
    state, limit, earliest, this_epoch, stretch, cursor, skipped_shift, engine, table, baseline, patch, agenda, scratch
):
    """Serve tasks one by one until all are served, the step exceeds `limit`, or the rest may equal the baseline.

    state      the following numbers, and the last ones of the agenda; returned with the outcome
    earliest   the first position from which the rest may be compared with the baseline

    position               one behind the last baseline position whose task was served or skipped
    num_old, num_removed   of the tasks at earlier positions: how many were served or skipped, how many are removed
    num_passed             how many of patch.removed lie before `position`
    num_out, longest       the number of tasks served one by one, and the latest end
    shift, votes           the shift of most tasks, and its lead in votes
    stray_old, stray_new   the latest end of a stray task in the baseline, and in the new schedule
    all_old                the latest end in the baseline of any task so far
    """
    position, num_old, num_removed, num_passed, num_out, longest = state[:6]
    shift, votes, stray_old, stray_new, all_old = state[6:11]
    size, head, stop, bucket, base, width, num_fresh = state[11:]
    first, last, chain, row, heap, fresh = agenda
    order, duration, lane_lo, lane_hi, lanes, need_lo, need_hi, needs = table
    _, pos, old_ready, old_end, _, follow_lo, follow_hi, follows, num_roots, _ = baseline
    served, done, touched, waits, ready, _, out, free, left = scratch[:9]
    removed, _, fate, first_link, link, link_to = patch
    outcome = IN_STEP
    while True:
        size, stop = put(
            num_fresh, size, head, stop, bucket, base, width, first, last, chain, row, heap, fresh, ready, order
        )
        num_fresh = 0
        if position >= earliest and num_old == position - num_removed:
            since = old_ready[position - 1]
            # Roots are ready at time 0, whatever the shift is.
            if stray_old < since and stray_new <= since + shift and (shift == 0 or position >= num_roots):
                break
        if head == stop and size == 0:
            num_fresh, bucket, base, width = opened(bucket, base, width, first, chain, fresh, ready)
            if num_fresh == 0:
                outcome = ALL_SERVED
                break
            continue
        task, head, size = take(size, head, stop, row, heap, ready, order)
        begin, p = ready[task], pos[task]
        for k in range(lane_lo[task], lane_hi[task]):
            begin = max(begin, free[engine[lanes[k]]])
        finish = begin + duration[task]
        late = finish > limit
        for k in range(lane_lo[task], lane_hi[task]):
            e = engine[lanes[k]]
            # Two lanes of a task on one engine count once: the first of them makes it busy.
            if free[e] < finish:
                late |= left[e] > limit - begin
                left[e], free[e] = left[e] - duration[task], finish
        if late:
            outcome = TOO_LATE
            break
        served[task], done[task], out[num_out], num_out = this_epoch, finish, task, num_out + 1
        num_fresh = find_followers(task, fate, follow_lo, follow_hi, follows, first_link, link, link_to, fresh)
        num_fresh = update_waits(
            num_fresh, finish, this_epoch, stretch, cursor, skipped_shift, need_lo, need_hi, needs, pos, old_end, fate,
            served, done, touched, waits, ready, fresh,
        )  # fmt: skip
        if fate[task] != KEPT:
            stray_new = max(stray_new, finish)
        else:
            shift, votes, stray_old, stray_new = vote_on_shift(
                finish, old_end[p], shift, votes, stray_old, stray_new, all_old, longest
            )
            all_old = max(all_old, old_end[p])
        longest = max(longest, finish)
        if p >= 0:
            num_old, position = num_old + 1, max(position, p + 1)
            if num_passed < len(removed) and removed[num_passed] < position:
                num_passed, num_removed, last_end = pass_removed(num_passed, num_removed, position, baseline, patch)
                stray_old, all_old = max(stray_old, last_end), max(all_old, last_end)
    return outcome, (
        position, num_old, num_removed, num_passed, num_out, longest, shift, votes, stray_old, stray_new, all_old,
        size, head, stop, bucket, base, width, num_fresh,
    )  # fmt: skip


def find_followers(  # type: ignore[no-untyped-def]
    task, fate, follow_lo, follow_hi, follows, first_link, link, link_to, fresh
):
    """Put the kept and added tasks that need a task into `fresh`; returns their number."""
    num_fresh, entry = 0, first_link[task]
    for k in range(follow_lo[task], follow_hi[task]):
        if not fate[follows[k]] & REMOVED:
            fresh[num_fresh] = follows[k]
            num_fresh += 1
    while entry >= 0:
        fresh[num_fresh], num_fresh, entry = link_to[entry], num_fresh + 1, link[entry]
    return num_fresh


def update_waits(  # type: ignore[no-untyped-def]
    num_fresh, finish, this_epoch, stretch, cursor, skipped_shift, need_lo, need_hi, needs, pos, old_end, fate, served,
    done, touched, waits, ready, fresh,
):  # fmt: skip
    """Update the fresh tasks, of each of which one need ends at `finish`; the first time in a stretch all needs are
    counted. Only tasks that wait for nothing else stay fresh; returns their number.
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
                if served[need] == this_epoch:
                    when = max(when, done[need])
                elif fate[need] < ADDED and pos[need] < cursor:
                    when = max(when, old_end[pos[need]] + skipped_shift)
                else:
                    count += 1
            touched[t], waits[t], ready[t] = stretch, count, when
        if waits[t] == 0:
            fresh[num_open] = t
            num_open += 1
    return num_open


def vote_on_shift(finish, ended, shift, votes, stray_old, stray_new, all_old, longest):  # type: ignore[no-untyped-def]
    """Count the vote of a kept task; returns `shift`, `votes`, `stray_old` and `stray_new` of `serve_changed`.

    A majority vote (Boyer, Moore, 1981). When another shift wins, all tasks so far are taken to be stray.
    """
    if finish - ended == shift:
        return shift, min(votes + 1, MOST_VOTES), stray_old, stray_new
    if votes == 0:
        return finish - ended, 0, all_old, longest
    return shift, votes - 1, max(stray_old, ended), max(stray_new, finish)


def pass_removed(num_passed, num_removed, position, baseline, patch):  # type: ignore[no-untyped-def]
    """Pass removed tasks before `position`; returns `num_passed` and `num_removed` of `serve_changed`, and the latest
    end in the baseline of the tasks passed, which are stray. Replaced tasks are passed, but not counted as removed.
    """
    latest = -1
    while num_passed < len(patch.removed) and patch.removed[num_passed] < position:
        p = patch.removed[num_passed]
        latest, num_passed = max(latest, baseline.end[p]), num_passed + 1
        num_removed += patch.fate[baseline.seq[p]] == REMOVED
    return num_passed, num_removed, latest


def first_change(  # type: ignore[no-untyped-def]
    position, num_passed, shift, cursor, skipped_shift, this_epoch, num_unserved, table, baseline, patch, scratch
):
    """The position of the next change: of a removed task, or where an added task would be served, if all tasks before
    keep the shift. Also drops served tasks from `unserved`; returns its new length too.
    """
    stop, num_open = patch.removed[num_passed] if num_passed < len(patch.removed) else len(baseline.seq), 0
    for i in range(num_unserved):
        t, when = scratch.unserved[i], 0
        if scratch.served[t] == this_epoch:
            continue
        scratch.unserved[num_open] = t
        num_open += 1
        for k in range(table.need_lo[t], table.need_hi[t]):
            need = table.needs[k]
            if scratch.served[need] == this_epoch:
                when = max(when, scratch.done[need])
            elif patch.fate[need] >= ADDED:
                when = NEVER
                break
            else:
                p = baseline.pos[need]
                when = max(when, baseline.end[p] + (skipped_shift if p < cursor else shift))
        low = position
        while when < NEVER and low < stop:
            half = (low + stop) >> 1
            before = baseline.ready[half] + shift
            if before < when or (before == when and table.order[baseline.seq[half]] < table.order[t]):
                low = half + 1
            else:
                stop = half
    return stop, num_open


def skip_stretch(  # type: ignore[no-untyped-def]
    position, stop, shift, num_skips, num_out, engine, table, baseline, scratch
):
    """Skip the baseline from `position` to `stop`, which recurs with a shift; returns when the last of its tasks ends.
    """
    scratch.skips[num_skips, 0], scratch.skips[num_skips, 1] = num_out, position
    scratch.skips[num_skips, 2], scratch.skips[num_skips, 3] = stop, shift
    stride, latest = max(STRIDE, len(scratch.free)), 0
    # Loads are known at every `stride`-th position; tasks before the first of these and after the last are added up.
    low, high = -(-position // stride), stop // stride
    if low < high:
        for e in range(len(scratch.left)):
            scratch.left[e] -= baseline.loads[high, e] - baseline.loads[low, e]
    for p in range(position, stop):
        latest = max(latest, baseline.end[p])
        if low >= high or p < low * stride or p >= high * stride:
            add_load(baseline.seq[p], p, -1, engine, table, scratch)
    return latest + shift


def most_work_left(scratch):  # type: ignore[no-untyped-def]
    """The most picoseconds of work that an engine has left."""
    most = 0
    for e in range(len(scratch.left)):
        most = max(most, scratch.left[e])
    return most


def restart(  # type: ignore[no-untyped-def]
    position, shift, stretch, this_epoch, cursor, num_unserved, engine, table, baseline, patch, agenda, scratch
):
    """Restart serving at a position of the baseline, shifted: set when engines are free, and put into `fresh` the tasks
    that wait for nothing; returns their number.
    """
    for e in range(len(scratch.free)):
        scratch.free[e] = 0
    num_fresh, low, stop, since = 0, 0, position, baseline.ready[position - 1] if position > 0 else 0
    while low < stop:
        half = (low + stop) >> 1
        if baseline.high[half] < since:
            low = half + 1
        else:
            stop = half
    for p in range(low, position):
        if baseline.end[p] >= since:
            t = baseline.seq[p]
            for k in range(table.lane_lo[t], table.lane_hi[t]):
                e = engine[table.lanes[k]]
                scratch.free[e] = max(scratch.free[e], baseline.end[p] + shift)
            for k in range(baseline.follow_lo[t], baseline.follow_hi[t]):
                u = baseline.follows[k]
                # A follower of two running tasks is fresh once.
                if baseline.pos[u] >= position and not patch.fate[u] & REMOVED and scratch.touched[u] != -stretch:
                    scratch.touched[u] = -stretch
                    agenda.fresh[num_fresh] = u
                    num_fresh += 1
    for p in range(position, baseline.num_roots):
        if not patch.fate[baseline.seq[p]] & REMOVED:
            agenda.fresh[num_fresh] = baseline.seq[p]
            num_fresh += 1
    for i in range(num_unserved):
        agenda.fresh[num_fresh] = scratch.unserved[i]
        num_fresh += 1
    return update_waits(
        num_fresh, 0, this_epoch, stretch, cursor, shift, table.need_lo, table.need_hi, table.needs, baseline.pos,
        baseline.end, patch.fate, scratch.served, scratch.done, scratch.touched, scratch.waits, scratch.ready,
        agenda.fresh,
    )  # fmt: skip


PARTS = (
    serve_changed, find_followers, update_waits, vote_on_shift, pass_removed, first_change, skip_stretch,
    most_work_left, restart,
)  # fmt: skip

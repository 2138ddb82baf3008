"""A plan's step as a sketch works it out: the program's steps in their order, on one processor of each class.

Compiled where it can be. Steps begin when what they read has arrived and their processors are free; transfers wait for
their links, and go on beside kernels. Which nodes, operators and collectives these are is not told.
"""

from __future__ import annotations

import numpy as np

from castile.planner.sketch.prices import FETCHED, JOINED, MIXED, SUMMED, contents, move, summands

NEVER = np.inf
# Steps from mark to mark, from which working out can begin.
STRIDE = 16
# What stands for the toll of a read before it is found.
UNFOUND = -1.0


def toll(e, is_ahead, plan, axes_of, program, uses, spaces, layouts, links, prices, room):  # type: ignore[no-untyped-def]
    """Find what read e costs under the plan's Configs: seconds of transfers, or which read before it brings it.

    is_ahead   whether it is read long after it is sent, so that what is sent may go together with others
    """
    flow, read, r = program.flow[e], program.layout[e], plan[uses.reader[e]]
    reader_axes = axes_of[program.space[uses.reader[e]]]
    mine = contents(read, r, reader_axes, spaces, layouts, prices, room)
    room.toll[e], room.shared[e] = 0.0, -1
    # Who has fetched the same before has fetched it for all.
    last_layout, last_c, other = -1, -1, program.before[e]
    while other >= 0:
        who = uses.reader[other]
        c, made = plan[who], program.layout[other]
        # Steps of a recurrent layer read the same one after the other.
        if c != last_c or made != last_layout:
            last_c, last_layout = c, made
            if contents(made, c, axes_of[program.space[who]], spaces, layouts, prices, room) == mine:
                room.shared[e] = other
                return
        other = program.before[other]
    seconds, last_layout, last_c = 0.0, -1, -1
    begin, num_groups, most, replicated = program.made_ptr[flow], 0, 0, False
    for m in range(begin, program.made_ptr[flow + 1]):
        c, made = plan[program.owner[m]], program.made[m]
        if c == last_c and made == last_layout:
            continue
        if is_added(m, begin, plan, axes_of, program, spaces, layouts, prices, room):
            continue
        num_groups += 1
        most, replicated = max(most, spaces.parts[c]), replicated or spaces.replicas[c] > 1
        last_c, last_layout = c, made
    last_layout, last_c = -1, -1
    for m in range(begin, program.made_ptr[flow + 1]):
        c, made = plan[program.owner[m]], program.made[m]
        if c == last_c and made == last_layout:
            continue
        if is_added(m, begin, plan, axes_of, program, spaces, layouts, prices, room):
            continue
        last_c, last_layout = c, made
        # Sums that lie on single processors are added up there before they go on their way.
        if program.partial[m] and num_groups > 1 and not replicated and spaces.parts[c] < most:
            continue
        axes = (axes_of[program.space[program.owner[m]]], reader_axes)
        pair = program.pair[program.pair_ptr[e] + m - begin]
        how = FETCHED
        if program.partial[m] and summands(made, c, axes[0], spaces, layouts) > 1:
            how = MIXED if num_groups > 1 and replicated else JOINED if is_ahead and links.bucket > 0 else SUMMED
        if how != FETCHED or contents(made, c, axes[0], spaces, layouts, prices, room) != mine:
            seconds += move(
                pair, made, c, how, read, r, program.itemsize[flow], axes, spaces, layouts, links, prices, room
            )
    room.toll[e] = seconds


def is_added(m, begin, plan, axes_of, program, spaces, layouts, prices, room):  # type: ignore[no-untyped-def]
    """Whether a summand lies as another one before it, to which it is added there."""
    if m == begin:
        return False
    who = program.owner[m]
    mine = contents(program.made[m], plan[who], axes_of[program.space[who]], spaces, layouts, prices, room)
    last_layout, last_c = -1, -1
    for other in range(begin, m):
        who = program.owner[other]
        c, made = plan[who], program.made[other]
        if c != last_c or made != last_layout:
            last_c, last_layout = c, made
            if mine == contents(made, c, axes_of[program.space[who]], spaces, layouts, prices, room):
                return True
    return False


def step_seconds(  # type: ignore[no-untyped-def]
    begin, side, plan, axes_of, type_of, program, uses, spaces, layouts, links, prices, classes, room, limit
):
    """How long the step of a plan takes, NEVER where that is more than `limit`, as soon as it shows; how far it went.

    Steps before `begin`, which follows a mark, are as they were when all was last worked out. Further microbatches take
    as long each as the first one, after which no gradients are summed yet.
    """
    mark = begin // STRIDE
    free, link, waited = room.free, room.link, room.waited
    for k in range(classes.num_first[side]):
        p = classes.each[side, k]
        free[p], link[p] = room.marks[mark, 0, p], room.marks[mark, 1, p]
        waited[p] = room.marks[mark, 2, p]
    longest, lead, period = room.longest[mark], room.turn[0, 0], room.turn[0, 1]
    for s in range(begin, len(program.node)):
        if s % STRIDE == 0:
            draft(s // STRIDE, longest, side, classes, room)
        if s == program.turns[0]:
            lead = longest
        elif s == program.turns[1]:
            period = longest - lead
        c = plan[program.node[s]]
        crew = spaces.crew[c]
        if classes.listed_in[side, crew] != classes.state[side]:
            enlist(crew, c, side, spaces, classes)
        first = spaces.crew_ptr[crew]
        last = first + classes.size[side, crew]
        ready = 0.0
        for e in range(program.read_ptr[s], program.read_ptr[s + 1]):
            if room.toll[e] < 0:
                toll(e, program.row[s] < 0, plan, axes_of, program, uses, spaces, layouts, links, prices, room)
            since = 0.0
            if room.shared[e] >= 0:
                since = room.since[room.shared[e]]
            else:
                flow = program.flow[e]
                for m in range(program.made_ptr[flow], program.made_ptr[flow + 1]):
                    # Who names what later microbatches add to does not look at it.
                    if 0 <= program.step[m] < s:
                        since = max(since, room.done[program.step[m]])
                if room.toll[e] > 0:
                    for k in range(first, last):
                        since = max(since, link[classes.listed[side, k]])
                    since += room.toll[e]
                    for k in range(first, last):
                        link[classes.listed[side, k]] = since
            room.since[e] = since
            ready = max(ready, since)
        if program.row[s] < 0:
            continue
        row = program.row[s] + spaces.split[c]
        done = 0.0
        for k in range(first, last):
            p = classes.listed[side, k]
            starts = free[p]
            if ready > starts:
                waited[p] += ready - starts
                starts = ready
                if waited[p] + room.work[p] > limit:
                    return NEVER, s + 1
            ends = starts + prices.seconds[row, type_of[p]]
            free[p] = ends
            done = max(done, ends)
        room.done[s] = done
        longest = max(longest, done)
    for k in range(classes.num_first[side]):
        longest = max(longest, link[classes.each[side, k]])
    room.turn[1, 0], room.turn[1, 1] = lead, period
    longest += max(0, program.turns[2]) * period
    return longest if longest <= limit else NEVER, len(program.node)


def draft(mark, longest, side, classes, room):  # type: ignore[no-untyped-def]
    """Note how things are before a step from which working out may begin later."""
    room.drafted_longest[mark] = longest
    for k in range(classes.num_first[side]):
        p = classes.each[side, k]
        room.drafts[mark, 0, p], room.drafts[mark, 1, p] = room.free[p], room.link[p]
        room.drafts[mark, 2, p] = room.waited[p]


def classed(side, classes):  # type: ignore[no-untyped-def]
    """Find the classes: processors that the Configs of the plan name alike fare alike."""
    count = 0
    for p in range(len(classes.sign)):
        classes.first[side, p] = p
        for k in range(count - 1, -1, -1):
            if classes.sign[classes.each[side, k]] == classes.sign[p]:
                classes.first[side, p] = classes.each[side, k]
                break
        if classes.first[side, p] == p:
            classes.each[side, count] = p
            count += 1
    classes.num_first[side] = count
    classes.state[side] += 1


def enlist(crew, c, side, spaces, classes):  # type: ignore[no-untyped-def]
    """Find the first of each class among the processors of Config c."""
    at = spaces.crew_ptr[crew]
    for k in range(spaces.proc_ptr[c], spaces.proc_ptr[c + 1]):
        p = spaces.procs[k]
        if classes.first[side, p] == p:
            classes.listed[side, at] = p
            at += 1
    classes.size[side, crew] = at - spaces.crew_ptr[crew]
    classes.listed_in[side, crew] = classes.state[side]


def doubt(begin, nodes, count, program, uses, room, log):  # type: ignore[no-untyped-def]
    """Of reads from step `begin` on that have to do with changed nodes, it is not known any more what they cost."""
    log.turn[0] += 1
    turn, earliest = log.turn[0], program.read_ptr[begin]
    for k in range(count):
        log.turned[nodes[k]] = turn
    for k in range(count):
        for at in range(uses.flow_ptr[nodes[k]], uses.flow_ptr[nodes[k] + 1]):
            flow, is_made = uses.flow[at], False
            if log.seen[flow] == turn:
                continue
            log.seen[flow] = turn
            for m in range(program.made_ptr[flow], program.made_ptr[flow + 1]):
                is_made = is_made or log.turned[program.owner[m]] == turn
            for r in range(uses.read_ptr[flow], uses.read_ptr[flow + 1]):
                e = uses.read[r]
                other = room.shared[e]
                is_concerned = is_made or other < 0 or log.turned[uses.reader[other]] == turn
                if e >= earliest and (is_concerned or log.turned[uses.reader[e]] == turn):
                    n = log.num_reads[0]
                    log.read[n], log.toll[n], log.shared[n] = e, room.toll[e], other
                    room.toll[e] = UNFOUND
                    log.num_reads[0] += 1


def keep(begin, side, program, classes, room, log):  # type: ignore[no-untyped-def]
    """What was worked out from step `begin` on is what later plans may begin with."""
    for s in range(begin, len(program.node)):
        room.kept_done[s] = room.done[s]
    for e in range(program.read_ptr[begin], len(program.flow)):
        room.kept_since[e] = room.since[e]
    room.turn[0, 0], room.turn[0, 1] = room.turn[1, 0], room.turn[1, 1]
    for mark in range(begin // STRIDE, len(room.longest)):
        room.longest[mark] = room.drafted_longest[mark]
        for k in range(3):
            for p in range(len(room.free)):
                room.marks[mark, k, p] = room.drafts[mark, k, classes.first[side, p]]
    classes.side[0] = side
    log.num_reads[0] = 0


def forget(begin, stop, program, room, log):  # type: ignore[no-untyped-def]
    """What was worked out from step `begin` on is as it was kept."""
    for s in range(begin, stop):
        room.done[s] = room.kept_done[s]
    for e in range(program.read_ptr[begin], program.read_ptr[stop]):
        room.since[e] = room.kept_since[e]
    for k in range(log.num_reads[0]):
        e = log.read[k]
        room.toll[e], room.shared[e] = log.toll[k], log.shared[k]
    log.num_reads[0] = 0


# To hand so many arrays to a function takes longer than what these do.
INLINED = (toll, draft, enlist)
PARTS = (is_added, step_seconds, classed, doubt, keep, forget)

"""A plan's step as a sketch works it out: the program's steps in their order, on one processor of each class.

Compiled where it can be. Steps begin when what they read has arrived and their processors are free; transfers wait for
their links, and go on beside kernels. Which nodes, operators and collectives these are is not told.
"""

from __future__ import annotations

import numpy as np

from castile.planner.sketch.prices import FETCHED, JOINED, MIXED, SUMMED, contents, index, move, summands

NEVER = np.inf
# Steps from mark to mark, from which working out can begin.
STRIDE = 16
# What stands for the toll of a read before it is found, and for how many ends of a flow lie apart.
UNFOUND, UNKNOWN = -1.0, -1


def toll(e, is_ahead, plan, axes_of, program, uses, spaces, layouts, links, prices, room):  # type: ignore[no-untyped-def]
    """Find what read e costs under the plan's Configs: seconds of transfers, or which read before it brings it.

    is_ahead   whether it is read long after it is sent, so that what is sent may go together with others
    """
    flow = index(program.flow[e])
    if room.num_ends[flow] == UNKNOWN:
        survey(flow, plan, axes_of, program, uses, spaces, layouts, prices, room)
    if room.toll[e] >= 0:
        return
    who = index(uses.reader[e])
    read, r = index(program.layout[e]), index(plan[who])
    reader_axes, first, num_ends = (
        axes_of[index(program.space[who])],
        index(program.made_ptr[flow]),
        room.num_ends[flow],
    )
    mine, seconds = contents(read, r, reader_axes, spaces, layouts, prices, room), 0.0
    for k in range(first, first + index(num_ends)):
        m = index(room.ends[k])
        who = index(program.owner[m])
        c, made = index(plan[who]), index(program.made[m])
        # Sums that lie on single processors are added up there before they go on their way.
        if program.partial[m] and spaces.parts[c] < room.fullest[flow]:
            continue
        axes = (axes_of[index(program.space[who])], reader_axes)
        how = FETCHED
        if program.partial[m] and summands(made, c, axes[0], spaces, layouts) > 1:
            is_mixed = num_ends > 1 and room.fullest[flow] == 0
            how = MIXED if is_mixed else JOINED if is_ahead and links.bucket > 0 else SUMMED
        if how != FETCHED or contents(made, c, axes[0], spaces, layouts, prices, room) != mine:
            seconds += move(made, c, how, read, r, program.itemsize[flow], axes, spaces, layouts, links, prices, room)
    room.toll[e] = seconds


def survey(flow, plan, axes_of, program, uses, spaces, layouts, prices, room):  # type: ignore[no-untyped-def]
    """Find of a flow the ends that lie as none before them does, and of its reads in doubt which one before brings it.

    Summands that lie as one before them are added to it there. Who has fetched the same before has fetched it for all.
    """
    begin, end, count, most, replicated = index(program.made_ptr[flow]), index(program.made_ptr[flow + 1]), 0, 0, False
    first = room.entries[1] + 1
    for m in range(begin, end):
        who, made = index(program.owner[m]), index(program.made[m])
        c = index(plan[who])
        lies = index(contents(made, c, axes_of[index(program.space[who])], spaces, layouts, prices, room))
        if room.met[lies] < first:
            room.met[lies], room.ends[begin + index(count)] = first, m
            count += 1
            most, replicated = max(most, spaces.parts[c]), replicated or spaces.replicas[c] > 1
    room.num_ends[flow], room.fullest[flow] = count, 0 if replicated else most
    first += 1
    for k in range(index(uses.read_ptr[flow]), index(uses.read_ptr[flow + 1])):
        e = index(uses.read[k])
        who, read = index(uses.reader[e]), index(program.layout[e])
        c = index(plan[who])
        lies = index(contents(read, c, axes_of[index(program.space[who])], spaces, layouts, prices, room))
        if room.toll[e] < 0:
            room.shared[e] = max(-1, room.met[lies] - first)
            room.toll[e] = 0.0 if room.shared[e] >= 0 else UNFOUND
        room.met[lies] = first + int(e)
    room.entries[1] = first + len(program.flow)


def step_seconds(  # type: ignore[no-untyped-def]
    begin, side, plan, axes_of, type_of, program, uses, spaces, layouts, links, prices, classes, room, limit
):
    """How long the step of a plan takes, NEVER where that is more than `limit`, as soon as it shows; how far it went.

    Steps before `begin`, which follows a mark, are as they were when all was last worked out. Further microbatches take
    as long each as the first one, after which no gradients are summed yet.
    """
    mark, side = begin // STRIDE, index(side)
    free, link, waited = room.free, room.link, room.waited
    for k in range(classes.num_first[side]):
        p = classes.each[side, k]
        free[p], link[p] = room.marks[mark, 0, p], room.marks[mark, 1, p]
        waited[p] = room.marks[mark, 2, p]
    longest, lead, period = room.longest[mark], room.turn[0, 0], room.turn[0, 1]
    first_turn, second_turn, state = index(program.turns[0]), index(program.turns[1]), classes.state[side]
    for s in range(index(begin), index(len(program.node))):
        if s % STRIDE == 0:
            draft(s // STRIDE, longest, side, classes, room)
        if s == first_turn:
            lead = longest
        elif s == second_turn:
            period = longest - lead
        c = index(plan[index(program.node[s])])
        crew = index(spaces.crew[c])
        if classes.listed_in[side, crew] != state:
            enlist(crew, c, side, spaces, classes)
        first = index(spaces.crew_ptr[crew])
        last = first + index(classes.size[side, crew])
        ready = 0.0
        for e in range(index(program.read_ptr[s]), index(program.read_ptr[s + 1])):
            if room.toll[e] < 0:
                toll(e, program.row[s] < 0, plan, axes_of, program, uses, spaces, layouts, links, prices, room)
            since = 0.0
            if room.shared[e] >= 0:
                since = room.since[index(room.shared[e])]
            else:
                for k in range(index(uses.source_ptr[e]), index(uses.source_ptr[e + 1])):
                    since = max(since, room.done[index(uses.source[k])])
                if room.toll[e] > 0:
                    for k in range(first, last):
                        since = max(since, link[index(classes.listed[side, k])])
                    since += room.toll[e]
                    for k in range(first, last):
                        link[index(classes.listed[side, k])] = since
            room.since[e] = since
            ready = max(ready, since)
        if program.row[s] < 0:
            continue
        row = index(program.row[s] + spaces.split[c])
        done = 0.0
        for k in range(first, last):
            p = index(classes.listed[side, k])
            starts = free[p]
            if ready > starts:
                waited[p] += ready - starts
                starts = ready
                if waited[p] + room.work[p] > limit:
                    return NEVER, int(s) + 1
            ends = starts + prices.seconds[row, index(type_of[p])]
            free[p] = ends
            done = max(done, ends)
        room.done[s] = done
        longest = max(longest, done)
    for k in range(classes.num_first[side]):
        longest = max(longest, link[classes.each[side, k]])
    room.turn[1, 0], room.turn[1, 1] = lead, period
    longest += program.turns[2] * period
    return longest if longest <= limit else NEVER, len(program.node)


def draft(mark, longest, side, classes, room):  # type: ignore[no-untyped-def]
    """Note how things are before a step from which working out may begin later."""
    room.drafted_longest[mark] = longest
    for k in range(index(0), index(classes.num_first[side])):
        p = index(classes.each[side, k])
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
    turn, earliest = log.turn[0], index(program.read_ptr[begin])
    for k in range(count):
        log.turned[nodes[k]] = turn
    for k in range(count):
        for at in range(uses.flow_ptr[nodes[k]], uses.flow_ptr[nodes[k] + 1]):
            flow, is_made = index(uses.flow[at]), False
            if log.seen[flow] == turn:
                continue
            log.seen[flow], room.num_ends[flow] = turn, UNKNOWN
            for m in range(index(program.made_ptr[flow]), index(program.made_ptr[flow + 1])):
                is_made = is_made or log.turned[index(program.owner[m])] == turn
            for r in range(index(uses.read_ptr[flow]), index(uses.read_ptr[flow + 1])):
                e = index(uses.read[r])
                other = room.shared[e]
                is_concerned = is_made or other < 0 or log.turned[index(uses.reader[index(other)])] == turn
                if e >= earliest and (is_concerned or log.turned[index(uses.reader[e])] == turn):
                    n = index(log.num_reads[0])
                    log.read[n], log.toll[n], log.shared[n] = e, room.toll[e], other
                    room.toll[e] = UNFOUND
                    log.num_reads[0] += 1


def keep(begin, side, program, classes, room, log):  # type: ignore[no-untyped-def]
    """What was worked out from step `begin` on is what later plans may begin with."""
    for s in range(index(begin), index(len(program.node))):
        room.kept_done[s] = room.done[s]
    for e in range(index(program.read_ptr[begin]), index(len(program.flow))):
        room.kept_since[e] = room.since[e]
    room.turn[0, 0], room.turn[0, 1] = room.turn[1, 0], room.turn[1, 1]
    for mark in range(index(begin // STRIDE), index(len(room.longest))):
        room.longest[mark] = room.drafted_longest[mark]
        for k in range(index(0), index(3)):
            for p in range(index(0), index(len(room.free))):
                room.marks[mark, k, p] = room.drafts[mark, k, index(classes.first[side, p])]
    classes.side[0] = side
    log.num_reads[0] = 0


def forget(begin, stop, program, room, log):  # type: ignore[no-untyped-def]
    """What was worked out from step `begin` on is as it was kept."""
    for s in range(index(begin), index(stop)):
        room.done[s] = room.kept_done[s]
    for e in range(index(program.read_ptr[begin]), index(program.read_ptr[stop])):
        room.since[e] = room.kept_since[e]
    for k in range(log.num_reads[0]):
        e = log.read[k]
        room.toll[e], room.shared[e] = log.toll[k], log.shared[k]
    log.num_reads[0] = 0


INLINED = (survey, toll, draft, enlist)
PARTS = (step_seconds, classed, doubt, keep, forget)

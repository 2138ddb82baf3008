"""A plan's step as a sketch works it out: the program's steps in their order, on one processor of each class.

Compiled where it can be. Steps begin when what they read has arrived and their processors are free; transfers wait for
their links, and go on beside kernels. Which nodes, operators and collectives these are is not told.
"""

from __future__ import annotations

import numpy as np

from castile.planner.sketch.classes import enlist
from castile.planner.sketch.prices import ADDED, FETCHED, JOINED, MIXED, SUMMED, contents, index, move, summands

NEVER = np.inf
# Steps from mark to mark, from which working out can begin.
STRIDE = 16
# Of a step's time: shifts that differ by less are the same.
NEAR = 1e-10
# What stands for the toll of a read before it is found, and for how many ends of a flow lie apart.
UNFOUND, UNKNOWN = -1.0, -1
# Of a read that no read before it brings, and which is packed before it is sent.
PACKED = -2


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
            is_away = num_ends > 1 and spaces.crowd[c] != spaces.crowd[r]
            how = MIXED if is_mixed else ADDED if is_away else JOINED if is_ahead and links.bucket > 0 else SUMMED
        if how != FETCHED or contents(made, c, axes[0], spaces, layouts, prices, room) != mine:
            cost = move(made, c, how, read, r, program.itemsize[flow], axes, spaces, layouts, links, prices, room)
            seconds += abs(cost)
            if cost < 0:
                room.shared[e] = PACKED
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
    begin, side, is_whole, plan, axes_of, type_of, program, uses, spaces, layouts, links, prices, classes, room, log,
    limit,
):  # fmt: skip
    """How long the step of a plan takes, NEVER where that is more than `limit`, as soon as it shows; how far it went.

    Blocks of STRIDE steps before `begin` are as they were when all was last worked out. Of what follows a change most
    takes as long as it did, all of it later or sooner: blocks that have nothing to do with changed nodes are passed
    over, unless all are to be worked out (is_whole). Further microbatches take as long each as the first one, after
    which no gradients are summed yet. Stages that compute one after the other what they are given take one as often as
    the busiest has done its share, or as the first has one back of as many as there are stages.
    """
    side, longest, last = index(side), room.longest[begin], index(len(room.lag) - 1)
    least, most, earliest, latest = 0.0, 0.0, 0.0, 0.0
    for k in range(classes.num_first[side]):
        p = classes.each[side, k]
        room.free[p], room.link[p] = room.marks[begin, 0, p], room.marks[begin, 1, p]
        room.waited[p] = room.marks[begin, 2, p]
    room.turn[1, 0], room.turn[1, 1] = room.turn[0, 0], room.turn[0, 1]
    num_stages = room.num_stages[1]
    # Whoever waits in one microbatch works on another meanwhile.
    most_waited = limit if num_stages == 1 else NEVER
    for block in range(index(begin), last):
        draft(block, longest, side, classes, room)
        lag = np.nan
        if not is_whole:
            lag = lagging(block, least, most, earliest, latest, side, program, classes, room, log)
        if lag == lag:
            longest = passed(block, lag, latest, longest, side, classes, room, most_waited)
            least, most = lag, lag
        else:
            room.lag[block], room.swept[block] = 0.0, log.turn[0]
            first, end = index(block * STRIDE), behind(block, program)
            for s in range(first, end):
                room.old_done[s] = room.done[s]
            for e in range(index(program.read_ptr[first]), index(program.read_ptr[end])):
                room.old_since[e] = room.since[e]
            longest, least, most = worked(
                block, longest, side, plan, axes_of, type_of, program, uses, spaces, layouts, links, prices, classes,
                room, most_waited,
            )  # fmt: skip
        if longest == NEVER:
            return NEVER, int(block) + 1
        earliest, latest = min(earliest, least), max(latest, most)
    draft(last, longest, side, classes, room)
    for k in range(classes.num_first[side]):
        longest = max(longest, room.link[classes.each[side, k]])
    period = room.turn[1, 1]
    if num_stages > 1:
        busiest = 0.0
        for k in range(classes.num_first[side]):
            busiest = max(busiest, room.work[classes.each[side, k]] / (program.turns[2] + 2))
        # No stage but the first computes gradients of parameters while others wait for it.
        sooner = max(0.0, min(period * program.slopes * (1 - 1 / num_stages), period - busiest))
        period = min(max((period - sooner) / num_stages, busiest), period)
        longest -= sooner + room.turn[1, 1] - period
        # Stages that take turns several times fill, and run out, in as many times less.
        longest -= (num_stages - 1) * period * (1 - 1 / room.rounds[1])
    longest += program.turns[2] * period
    return longest if longest <= limit else NEVER, int(last)


def worked(  # type: ignore[no-untyped-def]
    block, longest, side, plan, axes_of, type_of, program, uses, spaces, layouts, links, prices, classes, room, limit
):
    """Work out a block: the longest so far, NEVER where that shows to be above the limit, and by how much later at
    least and at most what is made and brought here is than it was.
    """
    peak, slack, link_slack, least, most = 0.0, NEVER, NEVER, NEVER, -NEVER
    # Stages compute gradients of parameters last, so that these are summed when all else was sent.
    is_piped = room.num_stages[1] > 1
    for s in range(index(block * STRIDE), behind(block, program)):
        if s == index(program.turns[0]):
            room.turn[1, 0] = max(longest, peak)
        elif s == index(program.turns[1]):
            room.turn[1, 1] = max(longest, peak) - room.turn[1, 0]
        c = index(plan[index(program.node[s])])
        crew = index(spaces.crew[c])
        if classes.listed_in[side, crew] != classes.state[side]:
            enlist(crew, c, side, spaces, classes)
        first = index(spaces.crew_ptr[crew])
        last = first + index(classes.size[side, crew])
        ready, old_ready, is_ahead = 0.0, 0.0, program.row[s] < 0
        for e in range(index(program.read_ptr[s]), index(program.read_ptr[s + 1])):
            if room.toll[e] < 0:
                toll(e, is_ahead, plan, axes_of, program, uses, spaces, layouts, links, prices, room)
            if is_ahead and is_piped:
                continue
            brings = ahead_of(e, uses, room) if is_piped else e
            since, old = made(brings, block, uses, room)
            if room.toll[brings] > 0:
                seconds = room.toll[brings]
                since, early, link_early = sent(seconds, since, old, block, first, last, side, classes, room)
                slack, link_slack, old = min(slack, early), min(link_slack, link_early), 0.0
                least, most = min(least, since - room.since[e]), max(most, since - room.since[e])
            room.since[e] = max(since, old)
            ready, old_ready = max(ready, since), max(old_ready, old)
        if is_ahead:
            continue
        row, done = index(program.row[s] + spaces.split[c]), 0.0
        for k in range(first, last):
            p = index(classes.listed[side, k])
            starts = max(room.free[p], ready)
            slack = min(slack, starts - old_ready)
            starts = max(starts, old_ready)
            if starts > room.free[p]:
                room.waited[p] += starts - room.free[p]
                if room.waited[p] + room.work[p] > limit:
                    return NEVER, least, most
            room.free[p] = starts + prices.seconds[row, index(type_of[p])]
            done = max(done, room.free[p])
        least, most = min(least, done - room.done[s]), max(most, done - room.done[s])
        room.done[s], peak = done, max(peak, done)
    room.drafted_slack[0, block], room.drafted_slack[1, block], room.drafted_slack[2, block] = peak, slack, link_slack
    return max(longest, peak), least, most


def ahead_of(e, uses, room):  # type: ignore[no-untyped-def]
    """The read that brings what read e does and was to be sent ahead; e itself where none was."""
    other = room.shared[e]
    while other >= 0 and uses.is_ahead[index(other)]:
        e, other = other, room.shared[index(other)]
    return index(e)


def made(e, block, uses, room):  # type: ignore[no-untyped-def]
    """Since when all that read e brings is there where it is made: what this block makes or the one before, and what
    others do. To be packed it waits for what its maker could do since then too.
    """
    since, old = 0.0, 0.0
    if room.shared[e] >= 0:
        other = index(room.shared[e])
        there = index(uses.block[other])
        since = room.since[other] + room.lag[there]
        return (0.0, since) if there + 1 < block else (since, 0.0)
    for k in range(index(uses.source_ptr[e]), index(uses.source_ptr[e + 1])):
        source = index(uses.late[k] if room.shared[e] == PACKED else uses.source[k])
        there = source // STRIDE
        done = room.done[source] + room.lag[there]
        if there + 1 < block:
            old = max(old, done)
        else:
            since = max(since, done)
    return since, old


def sent(seconds, since, old, block, first, last, side, classes, room):  # type: ignore[no-untyped-def]
    """Send for so many seconds what is there since then: when it has come, and by how much what is old came too early
    to be waited for, and links that were at work before this block did.
    """
    busy = 0.0
    for k in range(first, last):
        p = index(classes.listed[side, k])
        if room.link[p] == room.drafts[block, 1, p]:
            busy = max(busy, room.link[p])
        else:
            since = max(since, room.link[p])
    link_early, since = max(since, old) - busy, max(since, busy)
    early, since = since - old, max(since, old) + seconds
    for k in range(first, last):
        room.link[index(classes.listed[side, k])] = since
    return since, early, link_early


def behind(block, program):  # type: ignore[no-untyped-def]
    """The step behind a block."""
    return index(min(int(block) * STRIDE + STRIDE, len(program.node)))


def lagging(block, least, most, earliest, latest, side, program, classes, room, log):  # type: ignore[no-untyped-def]
    """By how much later a block is than in the plan that was kept; not a number where it is to be worked out.

    least, most         by how much later what the block before has made is, at least and at most
    earliest, latest    the same of all before
    All of it is as much later as its processors, unless a change has to do with it, or something else that is waited
    for is not: links, what the block before has made, or what comes from long before and is waited for, or may be now.
    What others read before, at no cost, is taken to be of the block in which they did.
    """
    is_turn = index(program.turns[0]) // STRIDE == block or index(program.turns[1]) // STRIDE == block
    if is_turn or room.touched[block] == log.turn[0]:
        return np.nan
    near, stray, is_kept = NEAR * room.longest[len(room.longest) - 1], -NEVER, side == classes.side[0]
    lag = room.free[classes.each[side, 0]] - room.marks[block, 0, classes.each[side, 0]]
    if least < lag - near or most > lag + near:
        return np.nan
    for k in range(classes.num_first[side] if is_kept else len(room.free)):
        p = index(classes.each[side, k] if is_kept else k)
        mine = index(classes.first[side, p])
        if abs(room.free[mine] - room.marks[block, 0, p] - lag) > near:
            return np.nan
        link_lag = room.link[mine] - room.marks[block, 1, p]
        if abs(link_lag - lag) > near:
            stray = max(stray, link_lag)
    if stray > -NEVER and room.slack[2, block] < max(0.0, stray - lag) + near:
        return np.nan
    is_same = abs(lag) <= near and earliest >= -near and latest <= near
    return np.nan if room.slack[1, block] < max(0.0, latest - lag) and not is_same else lag


def passed(block, lag, latest, longest, side, classes, room, limit):  # type: ignore[no-untyped-def]
    """Go on behind a block of which all is later by `lag`: the longest so far, NEVER where that is above the limit."""
    for k in range(index(0), index(classes.num_first[side])):
        p = index(classes.each[side, k])
        room.free[p] = room.marks[block + 1, 0, p] + lag
        if room.marks[block + 1, 1, p] != room.marks[block, 1, p]:
            room.link[p] = room.marks[block + 1, 1, p] + lag
        room.waited[p] += room.marks[block + 1, 2, p] - room.marks[block, 2, p]
        if room.waited[p] + room.work[p] > limit:
            return NEVER
    room.lag[block] = lag
    room.drafted_slack[0, block] = room.slack[0, block] + lag
    room.drafted_slack[1, block] = room.slack[1, block] + min(0.0, lag - latest)
    room.drafted_slack[2, block] = room.slack[2, block] + min(0.0, lag - latest)
    return max(longest, room.drafted_slack[0, block])


def draft(mark, longest, side, classes, room):  # type: ignore[no-untyped-def]
    """Note how things are before a step from which working out may begin later."""
    room.drafted_longest[mark] = longest
    for k in range(index(0), index(classes.num_first[side])):
        p = index(classes.each[side, k])
        room.drafts[mark, 0, p], room.drafts[mark, 1, p] = room.free[p], room.link[p]
        room.drafts[mark, 2, p] = room.waited[p]


def doubt(begin, nodes, count, program, uses, room, log):  # type: ignore[no-untyped-def]
    """Of reads from block `begin` on that have to do with changed nodes, it is not known any more what they cost."""
    log.turn[0] += 1
    turn, earliest = log.turn[0], index(program.read_ptr[begin * STRIDE])
    for k in range(count):
        log.turned[nodes[k]] = turn
        for at in range(program.own_ptr[nodes[k]], program.own_ptr[nodes[k] + 1]):
            room.touched[index(program.own[at]) // STRIDE] = turn
    for k in range(count):
        for at in range(uses.flow_ptr[nodes[k]], uses.flow_ptr[nodes[k] + 1]):
            flow, is_made = index(uses.flow[at]), False
            if log.visited[flow] == turn:
                continue
            log.visited[flow], room.num_ends[flow] = turn, UNKNOWN
            for m in range(index(program.made_ptr[flow]), index(program.made_ptr[flow + 1])):
                is_made = is_made or log.turned[index(program.owner[m])] == turn
            for r in range(index(uses.read_ptr[flow]), index(uses.read_ptr[flow + 1])):
                e = index(uses.read[r])
                other = room.shared[e]
                is_concerned = is_made or other < 0 or log.turned[index(uses.reader[index(other)])] == turn
                if e >= earliest and (is_concerned or log.turned[index(uses.reader[e])] == turn):
                    n = index(log.num_reads[0])
                    log.read[n], log.toll[n], log.shared[n] = e, room.toll[e], other
                    room.toll[e], room.touched[index(uses.block[e])] = UNFOUND, turn
                    log.num_reads[0] += 1


def keep(begin, side, program, classes, room, log):  # type: ignore[no-untyped-def]
    """What was worked out from block `begin` on is what later plans may begin with."""
    for block in range(index(begin), index(len(room.lag) - 1)):
        lag, room.lag[block] = room.lag[block], 0.0
        if lag != 0:
            first, last = index(block * STRIDE), behind(block, program)
            for s in range(first, last):
                room.done[s] += lag
            for e in range(index(program.read_ptr[first]), index(program.read_ptr[last])):
                room.since[e] += lag
        for k in range(index(0), index(3)):
            room.slack[k, block] = room.drafted_slack[k, block]
    room.turn[0, 0], room.turn[0, 1] = room.turn[1, 0], room.turn[1, 1]
    room.num_stages[0], room.rounds[0] = room.num_stages[1], room.rounds[1]
    for mark in range(index(begin), index(len(room.longest))):
        room.longest[mark] = room.drafted_longest[mark]
        for k in range(index(0), index(3)):
            for p in range(index(0), index(len(room.free))):
                room.marks[mark, k, p] = room.drafts[mark, k, index(classes.first[side, p])]
    classes.side[0] = side
    log.num_reads[0] = 0


def forget(begin, stop, program, room, log):  # type: ignore[no-untyped-def]
    """What was worked out from block `begin` on is as it was kept."""
    for block in range(index(begin), index(stop)):
        room.lag[block] = 0.0
        if room.swept[block] == log.turn[0]:
            first, last = index(block * STRIDE), behind(block, program)
            for s in range(first, last):
                room.done[s] = room.old_done[s]
            for e in range(index(program.read_ptr[first]), index(program.read_ptr[last])):
                room.since[e] = room.old_since[e]
    for k in range(log.num_reads[0]):
        e = log.read[k]
        room.toll[e], room.shared[e] = log.toll[k], log.shared[k]
    log.num_reads[0] = 0


INLINED = (draft, ahead_of, behind, made, sent, lagging, passed)
PARTS = (survey, toll, worked, step_seconds, doubt, keep, forget)

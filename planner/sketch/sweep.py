"""The seconds of one step of a plan: the program's passes are timed in order, on one processor of each class.

A pass begins when all that it reads has arrived and its processors are free. Transfers wait for the links of their
receivers, and overlap with kernels. Compiled where numba is installed. Terms and arrays are those of `arrays`; begin
with `step_seconds`. It does not know nodes, operators and collectives.

A changed plan is timed incrementally. The program is cut into blocks of STRIDE passes, and the state before each block
(when processors and links are free) is noted in `kept_state`. If a proposal changes a node whose first pass is in block
2, timing begins with the state noted before block 2; blocks 0 and 1 are unchanged:

    block        0      1      2      3      4      5
                 unchanged     |work  |work  |skip  |skip
    lag                                      +3 us  +3 us

From there on each block is either timed pass by pass (`work_block`) or skipped (`skip_block`). If a change does not
affect a block, and all that it begins with is later by the same number of seconds, the lag, all its passes are later by
the lag too: its state is that of the kept plan plus the lag. Data that arrived long before it was waited for has slack,
and may be a little later without any effect (`lag_of_block`). If the tried plan is accepted, `commit` adds the lags and
makes its notes the kept ones; otherwise `roll_back` restores what was overwritten.
"""

from __future__ import annotations

import numpy as np

from castile.planner.sketch.classes import list_firsts
from castile.planner.sketch.contents import index
from castile.planner.sketch.reads import PACKED, UNKNOWN, UNPRICED, price_read

NEVER = np.inf
# Passes of a block.
STRIDE = 16
# Lags that differ by less than this share of a step's time are taken to be equal.
NEAR = 1e-10


def step_seconds(  # type: ignore[no-untyped-def]
    begin, side, is_whole, plan, axes_of, type_of, program, uses, spaces, layouts, links, prices, classes, room, log,
    limit,
):  # fmt: skip
    """(seconds of a step of the plan, number of the block before which timing ended); the seconds are NEVER once they
    are known to exceed `limit`.

    begin      the first block that a change affects; those before are as in the kept plan
    is_whole   whether every block is timed, and none skipped

    The program has two microbatches written out; `program.micro_steps[2]` more are taken to last as long as the first
    one. With pipeline stages they do not follow one another: a new one begins every `period` seconds, which is the
    microbatch's time over the number of stages, but no less than the busiest stage computes for one microbatch.
    """
    side, longest, last = index(side), room.kept_longest[begin], index(len(room.lag) - 1)
    least, most, earliest, latest = 0.0, 0.0, 0.0, 0.0
    for k in range(classes.num_first[side]):
        p = classes.each[side, k]
        room.free[p], room.link[p] = room.kept_state[begin, 0, p], room.kept_state[begin, 1, p]
        room.waited[p] = room.kept_state[begin, 2, p]
    room.micro[1, 0], room.micro[1, 1] = room.micro[0, 0], room.micro[0, 1]
    num_stages = room.num_stages[1]
    # In a pipeline a processor that waits in one microbatch works on another meanwhile: waiting bounds nothing.
    most_waited = limit if num_stages == 1 else NEVER
    for block in range(index(begin), last):
        note_state(block, longest, side, classes, room)
        lag = np.nan
        if not is_whole:
            lag = lag_of_block(block, least, most, earliest, latest, side, program, classes, room, log)
        if lag == lag:
            longest = skip_block(block, lag, latest, longest, side, classes, room, most_waited)
            least, most = lag, lag
        else:
            room.lag[block], room.reworked_in[block] = 0.0, log.proposal[0]
            first, end = index(block * STRIDE), block_end(block, program)
            for s in range(first, end):
                room.old_done[s] = room.done[s]
            for e in range(index(program.read_ptr[first]), index(program.read_ptr[end])):
                room.old_arrival[e] = room.arrival[e]
            longest, least, most = work_block(
                block, longest, side, plan, axes_of, type_of, program, uses, spaces, layouts, links, prices, classes,
                room, most_waited,
            )  # fmt: skip
        if longest == NEVER:
            return NEVER, int(block) + 1
        earliest, latest = min(earliest, least), max(latest, most)
    note_state(last, longest, side, classes, room)
    for k in range(classes.num_first[side]):
        longest = max(longest, room.link[classes.each[side, k]])
    period = room.micro[1, 1]
    if num_stages > 1:
        busiest = 0.0
        for k in range(classes.num_first[side]):
            busiest = max(busiest, room.work[classes.each[side, k]] / (program.micro_steps[2] + 2))
        # Parameter gradients delay others only in the first stage; those of other stages fill idle time.
        sooner = max(0.0, min(period * program.slopes * (1 - 1 / num_stages), period - busiest))
        period = min(max((period - sooner) / num_stages, busiest), period)
        longest -= sooner + room.micro[1, 1] - period
        # An interleaved pipeline fills and drains faster by its number of rounds.
        longest -= (num_stages - 1) * period * (1 - 1 / room.rounds[1])
    longest += program.micro_steps[2] * period
    return longest if longest <= limit else NEVER, int(last)


def work_block(  # type: ignore[no-untyped-def]
    block, longest, side, plan, axes_of, type_of, program, uses, spaces, layouts, links, prices, classes, room, limit
):
    """Time a block pass by pass: (when the last pass so far ended; the least and the most seconds by which results and
    arrivals of this block are later than in the kept plan). The first is NEVER where a processor works and waits for
    longer than `limit`.
    """
    peak, slack, link_slack, least, most = 0.0, NEVER, NEVER, NEVER, -NEVER
    # Stages compute parameter gradients last, so these are summed when all else has been sent.
    is_piped = room.num_stages[1] > 1
    for s in range(index(block * STRIDE), block_end(block, program)):
        if s == index(program.micro_steps[0]):
            room.micro[1, 0] = max(longest, peak)
        elif s == index(program.micro_steps[1]):
            room.micro[1, 1] = max(longest, peak) - room.micro[1, 0]
        c = index(plan[index(program.node[s])])
        bag = index(spaces.proc_bag[c])
        if classes.listed_in[side, bag] != classes.state[side]:
            list_firsts(bag, c, side, spaces, classes)
        first = index(spaces.bag_ptr[bag])
        last = first + index(classes.size[side, bag])
        ready, old_ready, is_ahead = 0.0, 0.0, program.row[s] < 0
        for e in range(index(program.read_ptr[s]), index(program.read_ptr[s + 1])):
            if room.transfer[e] < 0:
                price_read(e, is_ahead, plan, axes_of, program, uses, spaces, layouts, links, prices, room)
            if is_ahead and is_piped:
                continue
            brings = sent_ahead_by(e, uses, room) if is_piped else e
            since, old = available(brings, block, uses, room)
            if room.transfer[brings] > 0:
                seconds = room.transfer[brings]
                since, early, link_early = send(seconds, since, old, block, first, last, side, classes, room)
                slack, link_slack, old = min(slack, early), min(link_slack, link_early), 0.0
                least, most = min(least, since - room.arrival[e]), max(most, since - room.arrival[e])
            room.arrival[e] = max(since, old)
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
    room.tried_slack[0, block], room.tried_slack[1, block], room.tried_slack[2, block] = peak, slack, link_slack
    return max(longest, peak), least, most


def sent_ahead_by(e, uses, room):  # type: ignore[no-untyped-def]
    """The read that sends the data of read e ahead; e itself if none does."""
    other = room.brought_by[e]
    while other >= 0 and uses.is_ahead[index(other)]:
        e, other = other, room.brought_by[index(other)]
    return index(e)


def available(e, block, uses, room):  # type: ignore[no-untyped-def]
    """(since, old): when all that read e brings has been made: by this block and the one before (`since`), and by
    earlier ones (`old`), to which slack applies; 0 for none.

    Data to be packed is packed by its producer, behind what that can compute meanwhile (`uses.late`).
    """
    since, old = 0.0, 0.0
    if room.brought_by[e] >= 0:
        other = index(room.brought_by[e])
        there = index(uses.block[other])
        since = room.arrival[other] + room.lag[there]
        return (0.0, since) if there + 1 < block else (since, 0.0)
    for k in range(index(uses.source_ptr[e]), index(uses.source_ptr[e + 1])):
        source = index(uses.late[k] if room.brought_by[e] == PACKED else uses.source[k])
        there = source // STRIDE
        done = room.done[source] + room.lag[there]
        if there + 1 < block:
            old = max(old, done)
        else:
            since = max(since, done)
    return since, old


def send(seconds, since, old, block, first, last, side, classes, room):  # type: ignore[no-untyped-def]
    """Send data for `seconds`: (when it has arrived; by how much `old` was too early, negative where it was waited for;
    the same for links that were busy before this block).

    first, last   the receivers, in `classes.listed`
    """
    busy = 0.0
    for k in range(first, last):
        p = index(classes.listed[side, k])
        if room.link[p] == room.tried_state[block, 1, p]:
            busy = max(busy, room.link[p])
        else:
            since = max(since, room.link[p])
    link_early, since = max(since, old) - busy, max(since, busy)
    early, since = since - old, max(since, old) + seconds
    for k in range(first, last):
        room.link[index(classes.listed[side, k])] = since
    return since, early, link_early


def block_end(block, program):  # type: ignore[no-untyped-def]
    """The step behind a block."""
    return index(min(int(block) * STRIDE + STRIDE, len(program.node)))


def lag_of_block(block, least, most, earliest, latest, side, program, classes, room, log):  # type: ignore[no-untyped-def]
    """The lag of a block: the seconds by which it is later, as a whole, than in the kept plan; NaN where it must be
    timed.

    least, most         the least and the most seconds by which results of the block before are later
    earliest, latest    the same for all blocks before
    A block may be skipped if (1) the change does not affect it; (2) all its processors, and all results of the block
    before, are later by one lag; (3) links and older data with another lag were not waited for and will not be, by
    their slack. What a read gets at no cost from an earlier read belongs to the block of that one.
    """
    is_edge = index(program.micro_steps[0]) // STRIDE == block or index(program.micro_steps[1]) // STRIDE == block
    if is_edge or room.affected_in[block] == log.proposal[0]:
        return np.nan
    near, stray, is_kept = NEAR * room.kept_longest[len(room.kept_longest) - 1], -NEVER, side == classes.side[0]
    lag = room.free[classes.each[side, 0]] - room.kept_state[block, 0, classes.each[side, 0]]
    if least < lag - near or most > lag + near:
        return np.nan
    for k in range(classes.num_first[side] if is_kept else len(room.free)):
        p = index(classes.each[side, k] if is_kept else k)
        mine = index(classes.first[side, p])
        if abs(room.free[mine] - room.kept_state[block, 0, p] - lag) > near:
            return np.nan
        link_lag = room.link[mine] - room.kept_state[block, 1, p]
        if abs(link_lag - lag) > near:
            stray = max(stray, link_lag)
    if stray > -NEVER and room.kept_slack[2, block] < max(0.0, stray - lag) + near:
        return np.nan
    is_same = abs(lag) <= near and earliest >= -near and latest <= near
    return np.nan if room.kept_slack[1, block] < max(0.0, latest - lag) and not is_same else lag


def skip_block(block, lag, latest, longest, side, classes, room, limit):  # type: ignore[no-untyped-def]
    """Skip a block that is later by `lag` as a whole; returns when the last pass so far ends, NEVER where a processor
    works and waits for longer than `limit`.
    """
    for k in range(index(0), index(classes.num_first[side])):
        p = index(classes.each[side, k])
        room.free[p] = room.kept_state[block + 1, 0, p] + lag
        if room.kept_state[block + 1, 1, p] != room.kept_state[block, 1, p]:
            room.link[p] = room.kept_state[block + 1, 1, p] + lag
        room.waited[p] += room.kept_state[block + 1, 2, p] - room.kept_state[block, 2, p]
        if room.waited[p] + room.work[p] > limit:
            return NEVER
    room.lag[block] = lag
    room.tried_slack[0, block] = room.kept_slack[0, block] + lag
    room.tried_slack[1, block] = room.kept_slack[1, block] + min(0.0, lag - latest)
    room.tried_slack[2, block] = room.kept_slack[2, block] + min(0.0, lag - latest)
    return max(longest, room.tried_slack[0, block])


def note_state(mark, longest, side, classes, room):  # type: ignore[no-untyped-def]
    """Note the state before a block of the tried plan, from which timing a later plan may begin."""
    room.tried_longest[mark] = longest
    for k in range(index(0), index(classes.num_first[side])):
        p = index(classes.each[side, k])
        room.tried_state[mark, 0, p], room.tried_state[mark, 1, p] = room.free[p], room.link[p]
        room.tried_state[mark, 2, p] = room.waited[p]


def invalidate(begin, nodes, count, program, uses, room, log):  # type: ignore[no-untyped-def]
    """Mark what the change of `count` nodes affects, from block `begin` on: blocks with passes of these nodes, and
    reads of flows that these nodes make or read, whose transfers must be priced again.

    A read that an earlier one serves, neither of them of a changed node, stays as it is.
    """
    log.proposal[0] += 1
    proposal, earliest = log.proposal[0], index(program.read_ptr[begin * STRIDE])
    for k in range(count):
        log.changed_in[nodes[k]] = proposal
        for at in range(program.own_ptr[nodes[k]], program.own_ptr[nodes[k] + 1]):
            room.affected_in[index(program.own[at]) // STRIDE] = proposal
    for k in range(count):
        for at in range(uses.flow_ptr[nodes[k]], uses.flow_ptr[nodes[k] + 1]):
            flow, is_made = index(uses.flow[at]), False
            if log.visited_in[flow] == proposal:
                continue
            log.visited_in[flow], room.num_ends[flow] = proposal, UNKNOWN
            for m in range(index(program.made_ptr[flow]), index(program.made_ptr[flow + 1])):
                is_made = is_made or log.changed_in[index(program.owner[m])] == proposal
            for r in range(index(uses.read_ptr[flow]), index(uses.read_ptr[flow + 1])):
                e = index(uses.read[r])
                other = room.brought_by[e]
                is_concerned = is_made or other < 0 or log.changed_in[index(uses.reader[index(other)])] == proposal
                if e >= earliest and (is_concerned or log.changed_in[index(uses.reader[e])] == proposal):
                    n = index(log.num_reads[0])
                    log.read[n], log.transfer[n], log.brought_by[n] = e, room.transfer[e], other
                    room.transfer[e], room.affected_in[index(uses.block[e])] = UNPRICED, proposal
                    log.num_reads[0] += 1


def commit(begin, side, program, classes, room, log):  # type: ignore[no-untyped-def]
    """Accept the tried plan: its state from block `begin` on becomes that of the kept plan."""
    for block in range(index(begin), index(len(room.lag) - 1)):
        lag, room.lag[block] = room.lag[block], 0.0
        if lag != 0:
            first, last = index(block * STRIDE), block_end(block, program)
            for s in range(first, last):
                room.done[s] += lag
            for e in range(index(program.read_ptr[first]), index(program.read_ptr[last])):
                room.arrival[e] += lag
        for k in range(index(0), index(3)):
            room.kept_slack[k, block] = room.tried_slack[k, block]
    room.micro[0, 0], room.micro[0, 1] = room.micro[1, 0], room.micro[1, 1]
    room.num_stages[0], room.rounds[0] = room.num_stages[1], room.rounds[1]
    for mark in range(index(begin), index(len(room.kept_longest))):
        room.kept_longest[mark] = room.tried_longest[mark]
        for k in range(index(0), index(3)):
            for p in range(index(0), index(len(room.free))):
                room.kept_state[mark, k, p] = room.tried_state[mark, k, index(classes.first[side, p])]
    classes.side[0] = side
    log.num_reads[0] = 0


def roll_back(begin, stop, program, room, log):  # type: ignore[no-untyped-def]
    """Reject the tried plan: restore the state of blocks `begin` to `stop`, and the transfers of its reads."""
    for block in range(index(begin), index(stop)):
        room.lag[block] = 0.0
        if room.reworked_in[block] == log.proposal[0]:
            first, last = index(block * STRIDE), block_end(block, program)
            for s in range(first, last):
                room.done[s] = room.old_done[s]
            for e in range(index(program.read_ptr[first]), index(program.read_ptr[last])):
                room.arrival[e] = room.old_arrival[e]
    for k in range(log.num_reads[0]):
        e = log.read[k]
        room.transfer[e], room.brought_by[e] = log.transfer[k], log.brought_by[k]
    log.num_reads[0] = 0


INLINED = (note_state, sent_ahead_by, block_end, available, send, lag_of_block, skip_block)
PARTS = (work_block, step_seconds, invalidate, commit, roll_back)

"""Costs of reads: the seconds of the transfers that bring a flow to a pass that reads it.

They are computed when a step is timed (`sweep.work_block`), and kept until a change affects them. Compiled where numba
is installed. Terms and arrays are those of `arrays`. It does not know when transfers begin.
"""

from __future__ import annotations

from castile.planner.sketch.contents import contents, index
from castile.planner.sketch.transfer_costs import ADDED, FETCHED, JOINED, MIXED, SUMMED, summands, transfer_seconds

# In place of the seconds of a read, and of the number of different ends of a flow, before they are computed.
UNPRICED, UNKNOWN = -1.0, -1
# `brought_by` of a read that has transfers of its own, which are packed before they are sent.
PACKED = -2


def price_read(e, is_ahead, plan, axes_of, program, uses, spaces, layouts, links, prices, room):  # type: ignore[no-untyped-def]
    """Compute `room.transfer[e]`: the seconds of the transfers of read e under the plan's Configs.

    They are 0 where an earlier read brings the same content (`find_ends`), or the reader's parts have the content of
    the flow's ends.
    is_ahead   whether it is read long after it is sent, so that it may be sent in a bucket
    """
    flow = index(program.flow[e])
    if room.num_ends[flow] == UNKNOWN:
        find_ends(flow, plan, axes_of, program, uses, spaces, layouts, prices, room)
    if room.transfer[e] >= 0:
        return
    reader = index(uses.reader[e])
    read, r = index(program.layout[e]), index(plan[reader])
    reader_axes, first = axes_of[index(program.space[reader])], index(program.made_ptr[flow])
    mine, seconds = contents(read, r, reader_axes, spaces, layouts, prices, room), 0.0
    for k in range(first, first + index(room.num_ends[flow])):
        m = index(room.ends[k])
        owner = index(program.owner[m])
        c, made = index(plan[owner]), index(program.made[m])
        # Several summands on one processor are added up there before they are sent.
        if program.partial[m] and spaces.parts[c] < room.fullest[flow]:
            continue
        axes = (axes_of[index(program.space[owner])], reader_axes)
        how = FETCHED
        if program.partial[m] and summands(made, c, axes[0], spaces, layouts) > 1:
            has_others = room.num_ends[flow] > 1
            is_mixed = has_others and room.fullest[flow] == 0
            is_away = has_others and spaces.proc_set[c] != spaces.proc_set[r]
            how = MIXED if is_mixed else ADDED if is_away else JOINED if is_ahead and links.bucket > 0 else SUMMED
        if how != FETCHED or contents(made, c, axes[0], spaces, layouts, prices, room) != mine:
            nbytes = program.itemsize[flow]
            lasts = transfer_seconds(made, c, how, read, r, nbytes, axes, spaces, layouts, links, prices, room)
            seconds += abs(lasts)
            if lasts < 0:
                room.brought_by[e] = PACKED
    room.transfer[e] = seconds


def find_ends(flow, plan, axes_of, program, uses, spaces, layouts, prices, room):  # type: ignore[no-untyped-def]
    """Find the ends of a flow that differ in content; and for each unpriced read of it the earlier read that brings the
    same content, if any.

    Ends of equal content cost one transfer, as equally placed summands are added up in place. Reads of equal content
    also cost one, as a processor that has fetched something has it for all later passes.
    """
    begin, end, count, most, replicated = index(program.made_ptr[flow]), index(program.made_ptr[flow + 1]), 0, 0, False
    first = room.entries[1] + 1
    for m in range(begin, end):
        owner, made = index(program.owner[m]), index(program.made[m])
        c = index(plan[owner])
        content = index(contents(made, c, axes_of[index(program.space[owner])], spaces, layouts, prices, room))
        if room.last_read[content] < first:
            room.last_read[content], room.ends[begin + index(count)] = first, m
            count += 1
            most, replicated = max(most, spaces.parts[c]), replicated or spaces.replicas[c] > 1
    room.num_ends[flow], room.fullest[flow] = count, 0 if replicated else most
    first += 1
    for k in range(index(uses.read_ptr[flow]), index(uses.read_ptr[flow + 1])):
        e = index(uses.read[k])
        reader, read = index(uses.reader[e]), index(program.layout[e])
        c = index(plan[reader])
        content = index(contents(read, c, axes_of[index(program.space[reader])], spaces, layouts, prices, room))
        if room.transfer[e] < 0:
            room.brought_by[e] = max(-1, room.last_read[content] - first)
            room.transfer[e] = 0.0 if room.brought_by[e] >= 0 else UNPRICED
        room.last_read[content] = first + int(e)
    room.entries[1] = first + len(program.flow)


PARTS = (find_ends, price_read)

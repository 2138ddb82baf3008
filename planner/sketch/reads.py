"""What reads cost: the seconds of the transfers that bring a flow to where a pass reads it.

They are found when a step is worked out (`sweep.work_block`) and kept until a change has to do with them. Compiled
where it can be. The words and arrays are those of `arrays`.
"""

from __future__ import annotations

from castile.planner.sketch.contents import contents, index
from castile.planner.sketch.prices import ADDED, FETCHED, JOINED, MIXED, SUMMED, summands, transfer_seconds

# What stands for the seconds of a read, and for the number of ends of a flow that differ, before they are found.
UNPRICED, UNKNOWN = -1.0, -1
# `brought_by` of a read that no earlier read brings, and which is packed before it is sent.
PACKED = -2


def price_read(e, is_ahead, plan, axes_of, program, uses, spaces, layouts, links, prices, room):  # type: ignore[no-untyped-def]
    """Find the seconds of the transfers that read e takes under the plan's Configs: `room.transfer[e]`.

    They are 0 where an earlier read brings the same (`find_ends`), or where the reader's parts lie as the flow's ends
    do.
    is_ahead   whether it is read long after it is sent, so that what is sent may go together with others, in a bucket
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
        # Summands of which one processor has several are added up there before they are sent.
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
    """Find the ends of a flow that differ in content, and of those of its reads that are not priced which earlier read
    of the flow brings the same content.

    Two ends of equal content cost one transfer: summands that lie alike are added up where they lie. Two reads of equal
    content do too: who has fetched something once has it for all later passes.
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

"""The loops of a sketch: a plan's step worked out in the order of the program, and a walk through plans.

Compiled where it can be; which nodes, operators and collectives these are is not told. Steps begin when what they read
has arrived and their processors are free; transfers wait for their links, and go on beside kernels.
"""

from __future__ import annotations

import numpy as np

from castile.planner.sketch.prices import FETCHED, MASK, MIXED, SUMMED, content, hashed, price

NEVER = np.inf
# What a walk is told by: done, a split is not known yet, the table of transfers is full.
DONE, UNKNOWN, FULL = 0, 1, 2
# Steps from mark to mark, from which working out can begin.
STRIDE = 16


def contents(layout, c, kind_axes, spaces, layouts, prices, room):  # type: ignore[no-untyped-def]
    """The hash of where a layout's parts lie, found once."""
    at = layouts.base[layout] + c
    if prices.content[at] == 0:
        prices.content[at] = content(layout, c, kind_axes, spaces, layouts, room.scratch[4])
    return prices.content[at]


def move(pair, made, c, how, read, r, itemsize, axes, spaces, layouts, links, prices, room):  # type: ignore[no-untyped-def]
    """Seconds of a transfer, found once."""
    key = (pair * 3 + how << 42) + (c << 21) + r + 1
    slot = hashed(hashed(1, key & MASK), key >> 42) % len(prices.keys)
    while prices.keys[slot] != 0 and prices.keys[slot] != key:
        slot = (slot + 1) % len(prices.keys)
    if prices.keys[slot] == 0:
        prices.moves[slot] = price(made, c, how, read, r, itemsize, axes, spaces, layouts, links, room)
        prices.keys[slot] = key
        room.entries[0] += 1
    return prices.moves[slot]


def arrival(e, n, plan, axes_of, program, spaces, layouts, links, prices, room):  # type: ignore[no-untyped-def]
    """When what node n reads by read e is there, under the plan's Configs."""
    flow, read, r = program.flow[e], program.layout[e], plan[n]
    reader_axes = axes_of[program.space[n]]
    mine = contents(read, r, reader_axes, spaces, layouts, prices, room)
    room.here[e] = mine
    # Who has fetched the same before has fetched it for all.
    other = program.before[e]
    while other >= 0:
        if room.here[other] == mine:
            room.since[e] = room.since[other]
            return room.since[e]
        other = program.before[other]
    ready, seconds, last_layout, last_c = 0.0, 0.0, -1, -1
    begin, num_groups, most, replicated = program.made_ptr[flow], 0, 0, False
    for m in range(begin, program.made_ptr[flow + 1]):
        c, made = plan[program.owner[m]], program.made[m]
        num_groups += c != last_c or made != last_layout
        most, replicated = max(most, spaces.parts[c]), replicated or spaces.replicas[c] > 1
        last_c, last_layout = c, made
    last_layout, last_c = -1, -1
    for m in range(begin, program.made_ptr[flow + 1]):
        if program.step[m] >= 0:
            ready = max(ready, room.done[program.step[m]])
        c, made = plan[program.owner[m]], program.made[m]
        if c == last_c and made == last_layout:
            continue
        last_c, last_layout = c, made
        # Sums that lie on single processors are added up there before they go on their way.
        if program.partial[m] and num_groups > 1 and not replicated and spaces.parts[c] < most:
            continue
        axes = (axes_of[program.space[program.owner[m]]], reader_axes)
        pair = program.pair[program.pair_ptr[e] + m - begin]
        how = FETCHED
        if program.partial[m] and summands(made, c, axes[0], spaces, layouts) > 1:
            how = MIXED if num_groups > 1 and replicated else SUMMED
        if how != FETCHED or contents(made, c, axes[0], spaces, layouts, prices, room) != mine:
            seconds += move(
                pair, made, c, how, read, r, program.itemsize[flow], axes, spaces, layouts, links, prices, room
            )
    if seconds > 0:
        arrived = 0.0
        for at in range(spaces.proc_ptr[r], spaces.proc_ptr[r + 1]):
            p = spaces.procs[at]
            room.link[p] = max(room.link[p], ready)
            arrived = max(arrived, room.link[p])
        ready = arrived + seconds
        for at in range(spaces.proc_ptr[r], spaces.proc_ptr[r + 1]):
            room.link[spaces.procs[at]] = ready
    room.since[e] = ready
    return ready


def rehashed(old_keys, old_moves, keys, moves):  # type: ignore[no-untyped-def]
    """Put a table's entries into another."""
    for k in range(len(old_keys)):
        key = old_keys[k]
        slot = hashed(hashed(1, key & MASK), key >> 42) % len(keys)
        while keys[slot] != 0:
            slot = (slot + 1) % len(keys)
        keys[slot], moves[slot] = key, old_moves[k]


def summands(layout, c, kind_axes, spaces, layouts):  # type: ignore[no-untyped-def]
    """How many parts are to be summed where parts lie alike."""
    count = 1
    for a in range(kind_axes):
        if not layouts.bears[layout, a]:
            count *= spaces.degree[c, a]
    return count


def step_seconds(begin, plan, axes_of, type_of, program, spaces, layouts, links, prices, room, limit):  # type: ignore[no-untyped-def]
    """How long the step of a plan takes, NEVER where that is more than `limit`, as soon as it shows; how far it went.

    Steps before `begin`, which follows a mark, are as they were when all was last worked out.
    """
    num_procs, mark = len(room.free), begin // STRIDE
    for p in range(num_procs):
        room.free[p], room.link[p] = room.marks[mark, 0, p], room.marks[mark, 1, p]
        room.rest[p] = room.work[p] - room.marks[mark, 2, p]
    longest = room.longest[mark]
    for s in range(begin, len(program.node)):
        if s % STRIDE == 0:
            mark = s // STRIDE
            room.drafted_longest[mark] = longest
            for p in range(num_procs):
                room.drafts[mark, 0, p], room.drafts[mark, 1, p] = room.free[p], room.link[p]
                room.drafts[mark, 2, p] = room.work[p] - room.rest[p]
        n = program.node[s]
        c = plan[n]
        ready = 0.0
        for e in range(program.read_ptr[s], program.read_ptr[s + 1]):
            ready = max(ready, arrival(e, n, plan, axes_of, program, spaces, layouts, links, prices, room))
        if program.row[s] < 0:
            continue
        row = program.row[s] + spaces.split[c]
        done = 0.0
        for at in range(spaces.proc_ptr[c], spaces.proc_ptr[c + 1]):
            p = spaces.procs[at]
            lasts = prices.seconds[row, type_of[p]]
            room.free[p] = max(room.free[p], ready) + lasts
            room.rest[p] -= lasts
            done = max(done, room.free[p])
            if room.free[p] + room.rest[p] > limit:
                return NEVER, s + 1
        room.done[s] = done
        longest = max(longest, done)
    for p in range(num_procs):
        longest = max(longest, room.link[p])
    return longest if longest <= limit else NEVER, len(program.node)


def keep(begin, stop, program, room):  # type: ignore[no-untyped-def]
    """What was worked out from step `begin` on is what later plans may begin with."""
    for s in range(begin, stop):
        room.kept_done[s] = room.done[s]
        for e in range(program.read_ptr[s], program.read_ptr[s + 1]):
            room.kept_here[e], room.kept_since[e] = room.here[e], room.since[e]
        if s % STRIDE == 0:
            mark = s // STRIDE
            room.longest[mark] = room.drafted_longest[mark]
            for k in range(3):
                for p in range(len(room.free)):
                    room.marks[mark, k, p] = room.drafts[mark, k, p]


def forget(begin, stop, program, room):  # type: ignore[no-untyped-def]
    """What was worked out from step `begin` on is as it was kept."""
    for s in range(begin, stop):
        room.done[s] = room.kept_done[s]
        for e in range(program.read_ptr[s], program.read_ptr[s + 1]):
            room.here[e], room.since[e] = room.kept_here[e], room.kept_since[e]


def put(n, c, sign, type_of, program, spaces, prices, room):  # type: ignore[no-untyped-def]
    """Add (or take away) what node n under Config c has its processors do and hold."""
    split = spaces.split[c]
    for at in range(spaces.proc_ptr[c], spaces.proc_ptr[c + 1]):
        p = spaces.procs[at]
        room.held[p] += sign * prices.nbytes[program.known[n] + split]
        for k in range(program.own_ptr[n], program.own_ptr[n + 1]):
            room.work[p] += sign * prices.seconds[program.row[program.own[k]] + split, type_of[p]]


def likened(c, other, b, program, spaces, choices):  # type: ignore[no-untyped-def]
    """The Config of `other`, a neighbour, that cuts what they share as c does, on the same processors; -1 for none."""
    kind = program.space[other]
    size = spaces.proc_ptr[c + 1] - spaces.proc_ptr[c]
    for d in range(spaces.first[kind], spaces.first[kind + 1]):
        if spaces.proc_ptr[d + 1] - spaces.proc_ptr[d] != size:
            continue
        if spaces.procs[spaces.proc_ptr[d]] != spaces.procs[spaces.proc_ptr[c]]:
            continue
        if spaces.procs[spaces.proc_ptr[d + 1] - 1] != spaces.procs[spaces.proc_ptr[c + 1] - 1]:
            continue
        fits = True
        for a in range(choices.same.shape[1]):
            along = choices.same[b, a]
            if spaces.degree[d, a] != (spaces.degree[c, along] if along >= 0 else 1):
                fits = False
                break
        if fits:
            return d
    return -1


def drawn(n, u, program, spaces):  # type: ignore[no-untyped-def]
    """Any Config of a node."""
    first, last = spaces.first[program.space[n]], spaces.first[program.space[n] + 1]
    return first + min(int(u * (last - first)), last - first - 1)


def changed(i, draws, plan, program, spaces, choices, nodes, old):  # type: ignore[no-untyped-def]
    """Make a move: one node gets any Config, nodes of a group get one, or a node's goes over to its neighbours.

    nodes, old   which nodes changed, and what they had; gives how many
    """
    num_nodes, num_groups = len(program.space), len(choices.group_ptr) - 1
    n, count = min(int(draws[i, 1] * num_nodes), num_nodes - 1), 0
    which = int(draws[i, 0] * (3 if num_groups else 2))
    if which == 2:
        g = min(int(draws[i, 1] * num_groups), num_groups - 1)
        begin, size = choices.group_ptr[g], choices.group_ptr[g + 1] - choices.group_ptr[g]
        some = choices.group[begin + min(int(draws[i, 2] * size), size - 1)]
        c = plan[some] if draws[i, 3] < 0.5 else drawn(some, draws[i, 4], program, spaces)
        for k in range(begin, begin + size):
            if plan[choices.group[k]] != c:
                nodes[count], old[count] = choices.group[k], plan[choices.group[k]]
                plan[choices.group[k]] = c
                count += 1
        return count
    if which == 0:
        c = drawn(n, draws[i, 2], program, spaces)
        if c != plan[n]:
            nodes[0], old[0], plan[n] = n, plan[n], c
            return 1
        return 0
    for hop in range(draws.shape[1] - 4):
        size = choices.beside_ptr[n + 1] - choices.beside_ptr[n]
        if size == 0:
            break
        draw = draws[i, 3 + hop] * size
        b = choices.beside_ptr[n] + min(int(draw), size - 1)
        other = choices.beside[b]
        c = likened(plan[n], other, b, program, spaces, choices)
        if c < 0:
            break
        for k in range(count):
            if nodes[k] == other:
                return count
        if plan[other] != c:
            nodes[count], old[count] = other, plan[other]
            plan[other] = c
            count += 1
        n = other
        # What is left of the number after the choice of a neighbour is as good as drawn anew.
        if draw - int(draw) > 0.75:
            break
    return count


def walk(  # type: ignore[no-untyped-def]
    begin, draws, heats, plan, energy, best, best_energy, capacity, penalty, axes_of, type_of,
    program, spaces, layouts, links, prices, choices, room, nodes, old, seen,
):  # fmt: skip
    """Metropolis's walk from proposal number `begin`: (why it ends, the number reached, energy, least energy).

    plan         the Configs of the present plan
    best[B, N]   the last plans that were better than all before, in a ring
    seen         seen[0, 0] of them there were: which proposals, and their energies, in a ring; seen[0, 1]: the split
                 that is not known
    """
    for i in range(begin, len(draws)):
        if room.entries[0] * 2 > len(prices.keys):
            return FULL, i, energy, best_energy
        count = changed(i, draws, plan, program, spaces, choices, nodes, old)
        if count == 0:
            continue
        for k in range(count):
            missing = program.known[nodes[k]] + spaces.split[plan[nodes[k]]]
            if not prices.known[missing]:
                for j in range(count - 1, -1, -1):
                    plan[nodes[j]] = old[j]
                seen[0, 1] = missing
                return UNKNOWN, i, energy, best_energy
        for k in range(count):
            put(nodes[k], old[k], -1, type_of, program, spaces, prices, room)
            put(nodes[k], plan[nodes[k]], 1, type_of, program, spaces, prices, room)
        most = energy * (1 - heats[i] * np.log(1 - draws[i, draws.shape[1] - 1]))
        overflow, busiest = 0.0, 0.0
        for p in range(len(capacity)):
            overflow, busiest = max(overflow, room.held[p] / capacity[p] - 1), max(busiest, room.work[p])
        limit = most / (1 + penalty * overflow)
        seconds, first, stop = NEVER, len(program.node), 0
        if busiest <= limit:
            for k in range(count):
                first = min(first, program.own[program.own_ptr[nodes[k]]])
            first -= first % STRIDE
            seconds, stop = step_seconds(
                first, plan, axes_of, type_of, program, spaces, layouts, links, prices, room, limit
            )
        if seconds <= limit:
            keep(first, stop, program, room)
            energy = seconds * (1 + penalty * overflow)
            if energy < best_energy:
                k = int(seen[0, 0]) % len(best)
                best_energy = energy
                for j in range(len(plan)):
                    best[k, j] = plan[j]
                seen[0, 0] += 1
                seen[k + 1, 0], seen[k + 1, 1] = i, energy
        else:
            forget(first, stop, program, room)
            for k in range(count - 1, -1, -1):
                put(nodes[k], plan[nodes[k]], -1, type_of, program, spaces, prices, room)
                put(nodes[k], old[k], 1, type_of, program, spaces, prices, room)
                plan[nodes[k]] = old[k]
    return DONE, len(draws), energy, best_energy


PARTS = (contents, move, arrival, summands, step_seconds, keep, forget, put, likened, drawn, changed)

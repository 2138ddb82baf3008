"""The walk of a sketch through plans: changes to a plan, of which those are kept that Metropolis keeps.

Compiled where it can be. Which nodes and operators these are is not told, nor how a plan's step is worked out.
"""

from __future__ import annotations

import numpy as np

from castile.planner.sketch.sweep import NEVER, STRIDE, classed, doubt, forget, keep, step_seconds

# What a walk is told by: done, a split is not known yet, the table of transfers is full.
DONE, UNKNOWN, FULL = 0, 1, 2


def put(n, c, sign, type_of, program, spaces, prices, classes, room):  # type: ignore[no-untyped-def]
    """Add (or take away) what node n under Config c has its processors do and hold."""
    number, crew = program.known[n] + spaces.split[c], spaces.crew[c]
    salt, nbytes = sign * spaces.salt[crew], sign * prices.nbytes[number]
    for at in range(spaces.proc_ptr[c], spaces.proc_ptr[c + 1]):
        p = spaces.procs[at]
        room.held[p] += nbytes
        room.work[p] += sign * prices.total[number, type_of[p]]
        classes.sign[p] += salt


def put_all(plan, type_of, program, spaces, prices, classes, room):  # type: ignore[no-untyped-def]
    """What all nodes of a plan have their processors do and hold."""
    for p in range(len(room.work)):
        # Processors of different types fare differently on the same crew.
        room.work[p], room.held[p], classes.sign[p] = 0.0, 0.0, type_of[p]
    for n in range(len(plan)):
        put(n, plan[n], 1, type_of, program, spaces, prices, classes, room)


def shortage(capacity, room):  # type: ignore[no-untyped-def]
    """By what share of its memory a processor lacks memory, the one that lacks most of it."""
    found = 0.0
    for p in range(len(capacity)):
        found = max(found, room.held[p] / capacity[p] - 1)
    return found


def load(count, nodes, old, plan, type_of, program, spaces, prices, classes, room, log):  # type: ignore[no-untyped-def]
    """Note what processors do and hold, then have changed nodes go over from their old Configs to the plan's."""
    for p in range(len(room.work)):
        log.work[p], log.held[p], log.sign[p] = room.work[p], room.held[p], classes.sign[p]
    for k in range(count):
        put(nodes[k], old[k], -1, type_of, program, spaces, prices, classes, room)
        put(nodes[k], plan[nodes[k]], 1, type_of, program, spaces, prices, classes, room)


def likened(c, other, b, program, spaces, choices):  # type: ignore[no-untyped-def]
    """The Config of `other`, a neighbour, that cuts what they share as c does, on the same processors; -1 for none."""
    at = choices.like_ptr[b] + c
    if choices.like[at] == 0:
        choices.like[at] = 2 + likeness(c, other, b, program, spaces, choices)
    return choices.like[at] - 2


def likeness(c, other, b, program, spaces, choices):  # type: ignore[no-untyped-def]
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
    program, uses, spaces, layouts, links, prices, choices, classes, room, log, nodes, old, seen,
):  # fmt: skip
    """Metropolis's walk from proposal number `begin`: (why it ends, the number reached, energy, least energy).

    plan         the Configs of the present plan
    energy       its energy, not a number where it is not worked out yet
    best[B, N]   the last plans that were better than all before, in a ring
    seen         seen[0, 0] of them there were: which proposals, and their energies, in a ring; seen[0, 1]: the split
                 that is not known
    """
    if np.isnan(energy):
        put_all(plan, type_of, program, spaces, prices, classes, room)
        classed(0, classes)
        seconds, _ = step_seconds(
            0, 0, plan, axes_of, type_of, program, uses, spaces, layouts, links, prices, classes, room, NEVER
        )
        keep(0, 0, program, classes, room, log)
        energy = seconds * (1 + penalty * shortage(capacity, room))
        seen[1, 1] = best_energy = energy
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
        load(count, nodes, old, plan, type_of, program, spaces, prices, classes, room, log)
        most = energy * (1 - heats[i] * np.log(1 - draws[i, draws.shape[1] - 1]))
        overflow, busiest = shortage(capacity, room), 0.0
        for p in range(len(capacity)):
            busiest = max(busiest, room.work[p])
        limit = most / (1 + penalty * overflow)
        seconds, first, stop, side = NEVER, 0, 0, classes.side[0]
        if busiest <= limit:
            first, is_turned = len(program.node), False
            for k in range(count):
                first = min(first, program.own[program.own_ptr[nodes[k]]])
                is_turned = is_turned or spaces.crew[old[k]] != spaces.crew[plan[nodes[k]]]
            if is_turned:
                side = 1 - side
                classed(side, classes)
            first -= first % STRIDE
            doubt(first, nodes, count, program, uses, room, log)
            seconds, stop = step_seconds(
                first, side, plan, axes_of, type_of, program, uses, spaces, layouts, links, prices, classes, room, limit
            )
        if seconds <= limit:
            keep(first, side, program, classes, room, log)
            energy = seconds * (1 + penalty * overflow)
            if energy < best_energy:
                k = int(seen[0, 0]) % len(best)
                best_energy = energy
                for j in range(len(plan)):
                    best[k, j] = plan[j]
                seen[0, 0] += 1
                seen[k + 1, 0], seen[k + 1, 1] = i, energy
        else:
            forget(first, stop, program, room, log)
            for p in range(len(capacity)):
                room.work[p], room.held[p], classes.sign[p] = log.work[p], log.held[p], log.sign[p]
            for k in range(count - 1, -1, -1):
                plan[nodes[k]] = old[k]
    return DONE, len(draws), energy, best_energy


PARTS = (put, put_all, shortage, load, likened, likeness, drawn, changed)

"""The Metropolis walk of a sketch through plans: a move is accepted if it raises the energy by little, or lowers it.

The energy of a plan is the seconds of its step, with a penalty where it does not fit into memory (`arrays.Worth`).
Compiled where numba is installed, without the interpreter's lock, so that walks run in parallel threads. Read `walk`,
then `try_change`. It does not know nodes and operators, nor how a step is timed.
"""

from __future__ import annotations

import numpy as np

from castile.planner.sketch.classes import find_classes, find_stages
from castile.planner.sketch.moves import make_move
from castile.planner.sketch.sweep import NEVER, STRIDE, commit, invalidate, roll_back, step_seconds

# Why `walk` returns: it is done; a split has no price yet; the hash table of transfers is full.
DONE, UNKNOWN, FULL = 0, 1, 2


def add_node(n, c, sign, type_of, program, spaces, prices, classes, room):  # type: ignore[no-untyped-def]
    """Add the kernel seconds and the bytes of node n under Config c to its processors; subtract them for sign -1."""
    number, bag = program.known[n] + spaces.split[c], spaces.proc_bag[c]
    salt, nbytes, kept = sign * spaces.salt[bag], sign * prices.nbytes[number], sign * prices.kept[number]
    for at in range(spaces.proc_ptr[c], spaces.proc_ptr[c + 1]):
        p = spaces.procs[at]
        room.held[p] += nbytes
        room.kept[p] += kept
        room.work[p] += sign * prices.total[number, type_of[p]]
        classes.sign[p] += salt


def add_all_nodes(plan, type_of, program, spaces, prices, classes, room):  # type: ignore[no-untyped-def]
    """Set the seconds of kernels and the bytes of all processors from those of all nodes."""
    for p in range(len(room.work)):
        # Processors of different types differ even with the same nodes.
        room.work[p], room.held[p], room.kept[p], classes.sign[p] = 0.0, 0.0, 0.0, type_of[p]
    for n in range(len(plan)):
        add_node(n, plan[n], 1, type_of, program, spaces, prices, classes, room)


def shortage(capacity, num_stages, room):  # type: ignore[no-untyped-def]
    """The share of its memory that the fullest processor lacks, 0 where the plan fits.

    In a pipeline the first stage holds the activations of as many microbatches as there are stages.
    """
    found = 0.0
    for p in range(len(capacity)):
        found = max(found, (room.held[p] + (num_stages - 1) * room.kept[p]) / capacity[p] - 1)
    return found


def energy_of(seconds, overflow, worth):  # type: ignore[no-untyped-def]
    """The energy of a plan; overflow: the share of its memory that a processor lacks."""
    return (worth.base + worth.rate * seconds) * (1 + worth.penalty * overflow)


def seconds_limit(energy, overflow, worth):  # type: ignore[no-untyped-def]
    """The most seconds of a plan of at most this energy, with this overflow."""
    return (energy / (1 + worth.penalty * overflow) - worth.base) / worth.rate


def move_load(  # type: ignore[no-untyped-def]
    count, nodes, old, plan, type_of, program, spaces, prices, classes, room, log
):
    """Log the loads of processors, then move those of changed nodes from their old Configs to the plan's."""
    for p in range(len(room.work)):
        log.work[p], log.held[p], log.kept[p], log.sign[p] = room.work[p], room.held[p], room.kept[p], classes.sign[p]
    for k in range(count):
        add_node(nodes[k], old[k], -1, type_of, program, spaces, prices, classes, room)
        add_node(nodes[k], plan[nodes[k]], 1, type_of, program, spaces, prices, classes, room)


def try_change(  # type: ignore[no-untyped-def]
    count, most, nodes, old, plan, capacity, worth, axes_of, type_of, program, uses, spaces, layouts, links, prices,
    classes, room, log,
):  # fmt: skip
    """Time a plan in which `count` nodes have changed. If its energy is at most `most` it is accepted and its energy
    returned; otherwise all is restored, and NEVER returned. Without changed nodes the whole plan is timed.

    A cheap lower bound comes first: a step lasts at least as long as its busiest processor computes.
    """
    move_load(count, nodes, old, plan, type_of, program, spaces, prices, classes, room, log)
    busiest, side = 0.0, classes.side[0]
    for p in range(len(capacity)):
        busiest = max(busiest, room.work[p])
    first, is_moved = find_affected(count, nodes, old, plan, program, spaces)
    is_moved = is_moved or count == 0
    # A lower bound: there is at least one stage.
    room.num_stages[1], room.rounds[1] = 1 if is_moved else room.num_stages[0], room.rounds[0]
    overflow = shortage(capacity, room.num_stages[1], room)
    limit = seconds_limit(most, overflow, worth)
    if busiest <= limit and is_moved:
        side = 1 - side
        find_classes(side, classes)
        find_stages(side, plan, program, spaces, classes, room)
        overflow = shortage(capacity, room.num_stages[1], room)
        limit = seconds_limit(most, overflow, worth)
    seconds, stop = NEVER, 0
    # With another number of stages all gradients are summed at other times.
    is_whole = count == 0 or room.num_stages[1] != room.num_stages[0]
    first = 0 if is_whole else first // STRIDE
    if busiest <= limit:
        invalidate(first, nodes, count, program, uses, room, log)
        seconds, stop = step_seconds(
            first, side, is_whole, plan, axes_of, type_of, program, uses, spaces, layouts, links, prices, classes, room,
            log, limit,
        )  # fmt: skip
    if seconds <= limit:
        commit(first, side, program, classes, room, log)
        return energy_of(seconds, overflow, worth)
    roll_back(first, stop, program, room, log)
    for p in range(len(capacity)):
        room.work[p], room.held[p], room.kept[p], classes.sign[p] = log.work[p], log.held[p], log.kept[p], log.sign[p]
    restore(count, nodes, old, plan)
    return NEVER


def find_affected(count, nodes, old, plan, program, spaces):  # type: ignore[no-untyped-def]
    """(the first step that changed nodes decide, whether any of them changed its processors)"""
    first, is_moved = len(program.node), False
    for k in range(count):
        # A node without passes decides no step.
        if program.own_ptr[nodes[k]] < program.own_ptr[nodes[k] + 1]:
            first = min(first, program.own[program.own_ptr[nodes[k]]])
        is_moved = is_moved or spaces.proc_bag[old[k]] != spaces.proc_bag[plan[nodes[k]]]
    return first, is_moved


def restore(count, nodes, old, plan):  # type: ignore[no-untyped-def]
    """Restore the Configs of changed nodes; in reverse, as a node may have changed twice."""
    for k in range(count - 1, -1, -1):
        plan[nodes[k]] = old[k]


def walk(  # type: ignore[no-untyped-def]
    begin, draws, first, rises, limit, plan, energy, best, best_energy, capacity, worth, axes_of, type_of,
    program, uses, spaces, layouts, links, prices, choices, classes, room, log, nodes, old, outcome,
):  # fmt: skip
    """Walk from proposal number `begin` on. Returns (DONE, UNKNOWN or FULL; the number reached; the energy there; the
    least energy). After UNKNOWN the caller prices a split, after FULL it grows the table, and calls again.

    draws[I, D]  a row of uniform numbers for each proposal, where `first` is empty
    first[N]     Configs to which proposals revert nodes: at first all equal nodes together that changed equally, then
                 one by one
    rises[I]     the share by which an accepted proposal may raise the energy
    limit        the energy above which no plan is accepted
    plan[N]      the Configs of the present plan
    energy       its energy, NaN before it is known
    best[N]      the best plan so far
    outcome[2]   the proposal that led to it, and the split without a price (UNKNOWN)
    """
    if np.isnan(energy):
        add_all_nodes(plan, type_of, program, spaces, prices, classes, room)
        energy = try_change(
            0, NEVER, nodes, old, plan, capacity, worth, axes_of, type_of, program, uses, spaces, layouts, links,
            prices, classes, room, log,
        )  # fmt: skip
        best_energy = energy
    for i in range(begin, len(rises)):
        if room.entries[0] * 2 > len(prices.keys):
            return FULL, i, energy, best_energy
        if len(first) > 0:
            count = revert_change(i % len(plan), i < len(plan), first, plan, program, nodes, old)
        else:
            count = make_move(i, draws, plan, program, spaces, choices, nodes, old)
        if count == 0:
            continue
        for k in range(count):
            missing = program.known[nodes[k]] + spaces.split[plan[nodes[k]]]
            if not prices.known[missing]:
                restore(count, nodes, old, plan)
                outcome[1] = missing
                return UNKNOWN, i, energy, best_energy
        there = try_change(
            count, min(limit, energy * (1 + rises[i])), nodes, old, plan, capacity, worth, axes_of, type_of, program,
            uses, spaces, layouts, links, prices, classes, room, log,
        )  # fmt: skip
        if there == NEVER:
            continue
        energy = there
        if energy < best_energy:
            energy = try_change(
                0, NEVER, nodes, old, plan, capacity, worth, axes_of, type_of, program, uses, spaces, layouts, links,
                prices, classes, room, log,
            )  # fmt: skip
        if energy < best_energy:
            best_energy, outcome[0] = energy, i
            for j in range(len(plan)):
                best[j] = plan[j]
    return DONE, len(rises), energy, best_energy


def revert_change(n, together, first, plan, program, nodes, old):  # type: ignore[no-untyped-def]
    """Revert node n to its first Config; if `together`, with all equal nodes that changed equally. Returns the number
    of reverted nodes.

    It is 0, with nothing changed, where the node has its first Config; and if `together` unless they are several and n
    is the first of them.
    """
    count, c, d = 0, plan[n], first[n]
    if c == d:
        return 0
    for m in range(len(plan)) if together else range(n, n + 1):
        if program.known[m] == program.known[n] and plan[m] == c and first[m] == d:
            nodes[count], old[count] = m, c
            count += 1
    if together and (count == 1 or nodes[0] != n):
        return 0
    for k in range(count):
        plan[nodes[k]] = d
    return count


INLINED = (find_affected, energy_of, add_node, seconds_limit, restore, shortage)
PARTS = (move_load, add_all_nodes, revert_change, try_change)

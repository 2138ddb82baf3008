"""The Metropolis walk of a sketch through plans: a change is accepted if the plan then takes little more, or less.

Compiled where it can be, without the interpreter's lock, so that walks go on side by side in threads. Read `walk`, then
`tried`. Energy is what a walk makes small: the seconds of a step, with a penalty for a plan that does not fit into
memory (`arrays.Worth`). It does not know which nodes and operators these are, nor how a step is worked out.
"""

from __future__ import annotations

import numpy as np

from castile.planner.sketch.changes import changed
from castile.planner.sketch.classes import classed, staged
from castile.planner.sketch.sweep import NEVER, STRIDE, commit, invalidate, roll_back, step_seconds

# Why `walk` returns: it is done; a split has no price yet; the table of transfers is full.
DONE, UNKNOWN, FULL = 0, 1, 2


def load(n, c, sign, type_of, program, spaces, prices, classes, room):  # type: ignore[no-untyped-def]
    """Add to its processors what node n does and holds under Config c: seconds of kernels and bytes; sign -1 takes it
    away.
    """
    number, bag = program.known[n] + spaces.split[c], spaces.proc_bag[c]
    salt, nbytes, kept = sign * spaces.salt[bag], sign * prices.nbytes[number], sign * prices.kept[number]
    for at in range(spaces.proc_ptr[c], spaces.proc_ptr[c + 1]):
        p = spaces.procs[at]
        room.held[p] += nbytes
        room.kept[p] += kept
        room.work[p] += sign * prices.total[number, type_of[p]]
        classes.sign[p] += salt


def load_all(plan, type_of, program, spaces, prices, classes, room):  # type: ignore[no-untyped-def]
    """Set what all nodes of a plan have their processors do and hold."""
    for p in range(len(room.work)):
        # Processors of different types differ even if the same nodes lie on them.
        room.work[p], room.held[p], room.kept[p], classes.sign[p] = 0.0, 0.0, 0.0, type_of[p]
    for n in range(len(plan)):
        load(n, plan[n], 1, type_of, program, spaces, prices, classes, room)


def shortage(capacity, num_stages, room):  # type: ignore[no-untyped-def]
    """The share of its memory that the fullest processor lacks, 0 where the plan fits.

    In a pipeline the first stage holds the activations of as many microbatches as there are stages.
    """
    found = 0.0
    for p in range(len(capacity)):
        found = max(found, (room.held[p] + (num_stages - 1) * room.kept[p]) / capacity[p] - 1)
    return found


def energy_of(seconds, overflow, worth):  # type: ignore[no-untyped-def]
    """The energy of a plan that takes so many seconds and lacks such a share of its memory."""
    return (worth.base + worth.rate * seconds) * (1 + worth.penalty * overflow)


def longest(energy, overflow, worth):  # type: ignore[no-untyped-def]
    """The seconds that a plan which lacks such a share of its memory may take to be of at most that energy."""
    return (energy / (1 + worth.penalty * overflow) - worth.base) / worth.rate


def carry(count, nodes, old, plan, type_of, program, spaces, prices, classes, room, log):  # type: ignore[no-untyped-def]
    """Note in the log what processors do and hold, then take changed nodes from their old Configs to the plan's."""
    for p in range(len(room.work)):
        log.work[p], log.held[p], log.kept[p], log.sign[p] = room.work[p], room.held[p], room.kept[p], classes.sign[p]
    for k in range(count):
        load(nodes[k], old[k], -1, type_of, program, spaces, prices, classes, room)
        load(nodes[k], plan[nodes[k]], 1, type_of, program, spaces, prices, classes, room)


def tried(  # type: ignore[no-untyped-def]
    count, most, nodes, old, plan, capacity, worth, axes_of, type_of, program, uses, spaces, layouts, links, prices,
    classes, room, log,
):  # fmt: skip
    """Try a plan in which `count` nodes have changed, and accept it if its energy is at most `most`: that energy;
    NEVER, with all as it was, if it is more. With no node changed the plan is worked out from the beginning.

    Cheap bounds come first: a step lasts at least as long as its busiest processor computes.
    """
    carry(count, nodes, old, plan, type_of, program, spaces, prices, classes, room, log)
    busiest, side = 0.0, classes.side[0]
    for p in range(len(capacity)):
        busiest = max(busiest, room.work[p])
    first, is_turned = decided(count, nodes, old, plan, program, spaces)
    is_turned = is_turned or count == 0
    # A bound: there is at least one stage.
    room.num_stages[1], room.rounds[1] = 1 if is_turned else room.num_stages[0], room.rounds[0]
    overflow = shortage(capacity, room.num_stages[1], room)
    limit = longest(most, overflow, worth)
    if busiest <= limit and is_turned:
        side = 1 - side
        classed(side, classes)
        staged(side, plan, program, spaces, classes, room)
        overflow = shortage(capacity, room.num_stages[1], room)
        limit = longest(most, overflow, worth)
    seconds, stop = NEVER, 0
    # Where one stage becomes several, or several one, all gradients are summed at other times.
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
    restored(count, nodes, old, plan)
    return NEVER


def decided(count, nodes, old, plan, program, spaces):  # type: ignore[no-untyped-def]
    """(the first step that changed nodes decide, whether one of them changed its processors)"""
    first, is_turned = len(program.node), False
    for k in range(count):
        # A node without passes decides no step.
        if program.own_ptr[nodes[k]] < program.own_ptr[nodes[k] + 1]:
            first = min(first, program.own[program.own_ptr[nodes[k]]])
        is_turned = is_turned or spaces.proc_bag[old[k]] != spaces.proc_bag[plan[nodes[k]]]
    return first, is_turned


def restored(count, nodes, old, plan):  # type: ignore[no-untyped-def]
    """Give changed nodes back the Configs that they had; the last change first, as a node may have changed twice."""
    for k in range(count - 1, -1, -1):
        plan[nodes[k]] = old[k]


def walk(  # type: ignore[no-untyped-def]
    begin, draws, first, rises, limit, plan, energy, best, best_energy, capacity, worth, axes_of, type_of,
    program, uses, spaces, layouts, links, prices, choices, classes, room, log, nodes, old, outcome,
):  # fmt: skip
    """A walk from proposal number `begin`: (DONE, UNKNOWN or FULL: why it returns; the number reached, the energy
    there, the least energy). UNKNOWN and FULL are no ends: the caller prices a split, or widens the table, and calls
    again.

    draws[I, D]  uniform numbers that say what each proposal changes, where `first` is empty
    first[N]     the Configs to which proposals go back, one after the other: of nodes alike first those together that
                 changed alike, then each by itself
    rises[I]     by what share of its energy a plan that is accepted may be worse
    limit        the energy above which no plan is accepted
    plan[N]      the Configs of the present plan
    energy       its energy, not a number where it is to be worked out
    best[N]      the best plan so far
    outcome[2]   the proposal that led to it, and the split that is not known (UNKNOWN)
    """
    if np.isnan(energy):
        load_all(plan, type_of, program, spaces, prices, classes, room)
        energy = tried(
            0, NEVER, nodes, old, plan, capacity, worth, axes_of, type_of, program, uses, spaces, layouts, links,
            prices, classes, room, log,
        )  # fmt: skip
        best_energy = energy
    for i in range(begin, len(rises)):
        if room.entries[0] * 2 > len(prices.keys):
            return FULL, i, energy, best_energy
        if len(first) > 0:
            count = taken_back(i % len(plan), i < len(plan), first, plan, program, nodes, old)
        else:
            count = changed(i, draws, plan, program, spaces, choices, nodes, old)
        if count == 0:
            continue
        for k in range(count):
            missing = program.known[nodes[k]] + spaces.split[plan[nodes[k]]]
            if not prices.known[missing]:
                restored(count, nodes, old, plan)
                outcome[1] = missing
                return UNKNOWN, i, energy, best_energy
        there = tried(
            count, min(limit, energy * (1 + rises[i])), nodes, old, plan, capacity, worth, axes_of, type_of, program,
            uses, spaces, layouts, links, prices, classes, room, log,
        )  # fmt: skip
        if there == NEVER:
            continue
        energy = there
        if energy < best_energy:
            energy = tried(
                0, NEVER, nodes, old, plan, capacity, worth, axes_of, type_of, program, uses, spaces, layouts, links,
                prices, classes, room, log,
            )  # fmt: skip
        if energy < best_energy:
            best_energy, outcome[0] = energy, i
            for j in range(len(plan)):
                best[j] = plan[j]
    return DONE, len(rises), energy, best_energy


def taken_back(n, together, first, plan, program, nodes, old):  # type: ignore[no-untyped-def]
    """Give node n back its first Config, together with those alike that changed as it did if `together`: how many these
    are.

    0, with all as it was, where it has its first Config; and together, unless they are several and n is the first of
    them.
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


INLINED = (decided, energy_of, load, longest, restored, shortage)
PARTS = (carry, load_all, taken_back, tried)

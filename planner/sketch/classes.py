"""Which processors of a plan fare alike, so that one of each class is looked at, and which work together in stages.

Compiled where it can be. It does not know what they do.
"""

from __future__ import annotations


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


def staged(side, plan, program, spaces, classes, room):  # type: ignore[no-untyped-def]
    """Find how many stages a plan has (`planner/lowering/stages`), and in how many rounds they take turns; one where
    the batch is not cut into microbatches.

    As many rounds as there would be stretches of each, if all had as much to do: short ones hardly count.
    """
    room.num_stages[1], room.rounds[1], num_first = 1, 1.0, classes.num_first[side]
    if program.turns[1] == len(program.node) or num_first == 1:
        return
    for k in range(num_first):
        room.leader[classes.each[side, k]] = -1
    found, met = 0, 0
    for n in range(len(plan)):
        if program.own_ptr[n] == program.own_ptr[n + 1]:
            continue
        crew, first = spaces.crew[plan[n]], -1
        if classes.listed_in[side, crew] != classes.state[side]:
            enlist(crew, plan[n], side, spaces, classes)
        for k in range(spaces.crew_ptr[crew], spaces.crew_ptr[crew] + classes.size[side, crew]):
            p = classes.listed[side, k]
            if room.leader[p] < 0:
                room.leader[p], found, met = p, found + 1, met + 1
            while room.leader[p] != p:
                p = room.leader[p]
            if first < 0:
                first = p
            elif p != first:
                room.leader[p], found = first, found - 1
        if found == 1 and met == num_first:
            break
    room.num_stages[1] = max(1, found)
    if found <= 1:
        return
    last, stretch, every, squares = -1, 0.0, 0.0, 0.0
    for n in range(len(plan)):
        if program.own_ptr[n] < program.own_ptr[n + 1]:
            p = classes.first[side, spaces.procs[spaces.proc_ptr[plan[n]]]]
            while room.leader[p] != p:
                p = room.leader[p]
            if p != last:
                squares, stretch = squares + stretch * stretch, 0.0
            last, stretch, every = p, stretch + program.work[n], every + program.work[n]
    squares += stretch * stretch
    if squares > 0:
        room.rounds[1] = max(1.0, every * every / (squares * found))


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


PARTS = (classed, staged, enlist)

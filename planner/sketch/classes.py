"""Classes of processors, and pipeline stages.

Two processors that every Config of a plan names equally often do the same at the same time, so a sketch simulates one
of each class: under data parallelism on 64 processors, one of the 64. Compiled where numba is installed. It does not
know what processors do.
"""

from __future__ import annotations


def find_classes(side, classes):  # type: ignore[no-untyped-def]
    """Find the classes of processors: those of equal sign, which is the sum of the salts of the bags that name them."""
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


def find_stages(side, plan, program, spaces, classes, room):  # type: ignore[no-untyped-def]
    """Find the number of pipeline stages of a plan (`planner/lowering/stages`), and of rounds in which they take turns
    (interleaved pipelines); 1 without microbatches.

    Stages are sets of processors that no node spans, found by union-find over the bags. The number of rounds weighs
    stretches of nodes on one stage by their work: a short stretch hardly counts.
    """
    room.num_stages[1], room.rounds[1], num_first = 1, 1.0, classes.num_first[side]
    if program.micro_steps[1] == len(program.node) or num_first == 1:
        return
    for k in range(num_first):
        room.leader[classes.each[side, k]] = -1
    found, met = 0, 0
    for n in range(len(plan)):
        if program.own_ptr[n] == program.own_ptr[n + 1]:
            continue
        bag, first = spaces.proc_bag[plan[n]], -1
        if classes.listed_in[side, bag] != classes.state[side]:
            list_firsts(bag, plan[n], side, spaces, classes)
        for k in range(spaces.bag_ptr[bag], spaces.bag_ptr[bag] + classes.size[side, bag]):
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


def list_firsts(bag, c, side, spaces, classes):  # type: ignore[no-untyped-def]
    """List the first processor of each class among those of Config c, which has this bag."""
    at = spaces.bag_ptr[bag]
    for k in range(spaces.proc_ptr[c], spaces.proc_ptr[c + 1]):
        p = spaces.procs[k]
        if classes.first[side, p] == p:
            classes.listed[side, at] = p
            at += 1
    classes.size[side, bag] = at - spaces.bag_ptr[bag]
    classes.listed_in[side, bag] = classes.state[side]


PARTS = (find_classes, find_stages, list_firsts)

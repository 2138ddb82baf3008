"""The moves of a walk: random changes to a plan, of one node or of several that belong together.

Each takes a row of uniform numbers and notes which nodes it changed, and from what. Begin with `changed`. Compiled
where it can be. It does not know what a plan takes.
"""

from __future__ import annotations

import numpy as np

# Where nodes go from their processors: to the lower or upper half of them, to others, to them and as many others.
LOWER, UPPER, OTHERS, TWICE = 0, 1, 2, 3
# Each of these in so many ways: by which axis is then cut less or more, or how far away the others are.
NUM_WAYS = 3
NUM_TURNS = 4 * NUM_WAYS
# One move in so many is of a region.
REGIONS = 9
# The share of single-node moves that draw a kind first and then a node of it: in a network unrolled over many steps an
# embedding or a head would hardly ever be drawn otherwise. A larger share costs plans of many nodes that are alike.
BY_KIND = 0.1
# The share of a coarse walk's moves that are of one node, of any kind; the others are of groups.
SINGLE = 0.4


def coarsened(draws: np.ndarray) -> np.ndarray:
    """The draws of a walk, turned into those of a coarse one: it moves groups of nodes, and now and then a node of any
    kind.

    Configs are drawn mostly from the beginning of a space, where those on all processors are.
    """
    found, is_one = draws.copy(), draws[:, 0] < SINGLE
    found[:, 0] = np.where(is_one, 0.0, 2.5 / REGIONS)
    found[:, 3] = np.where(is_one, 0.0, (1 + draws[:, 3]) / 2)
    found[:, 4] = np.where(is_one, draws[:, 4], draws[:, 4] ** 3)
    return found


def likened(c, other, b, program, spaces, choices):  # type: ignore[no-untyped-def]
    """`likeness`, looked for once for each way to a neighbour and each Config."""
    at = choices.like_ptr[b] + c
    if choices.like[at] == 0:
        choices.like[at] = 2 + likeness(c, other, b, program, spaces, choices)
    return choices.like[at] - 2


def likeness(c, other, b, program, spaces, choices):  # type: ignore[no-untyped-def]
    """The Config of `other`, a neighbour, that cuts the shared axes as c does, on the same processors; -1 for none.

    b   the way to the neighbour, in `Choices.beside`
    """
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


def turned(c, turn, kind, spaces, choices):  # type: ignore[no-untyped-def]
    """`turning`, looked for once for each Config."""
    at = turn * len(spaces.split) + c
    if choices.turned[at] == 0:
        choices.turned[at] = 2 + turning(c, turn // NUM_WAYS, turn % NUM_WAYS, kind, spaces)
    return choices.turned[at] - 2


def turning(c, where, way, kind, spaces):  # type: ignore[no-untyped-def]
    """The Config of a node of this kind that lies elsewhere and is cut as c is but for one axis; -1 for none.

    where   LOWER or UPPER half of its processors, OTHERS (as many beside them), or TWICE as many
    way     which axis is cut more or less, or how far the others are
    """
    size, low, width = (
        spaces.proc_ptr[c + 1] - spaces.proc_ptr[c],
        spaces.procs[spaces.proc_ptr[c]],
        len(spaces.degree[c]),
    )
    axis, more, less = -1, 1, 1
    if where == OTHERS:
        low = (low // size ^ 1 << way) * size
    else:
        more, less = (2, 1) if where == TWICE else (1, 2)
        axis = chosen(c, way, less, spaces)
        if axis < 0:
            return -1
        size = size * more // less
        low = low // size * size if where == TWICE else low + (where == UPPER) * size
    for d in range(spaces.first[kind], spaces.first[kind + 1]):
        begin, end = spaces.proc_ptr[d], spaces.proc_ptr[d + 1]
        if end - begin != size or spaces.procs[begin] != low or spaces.procs[end - 1] != low + size - 1:
            continue
        fits = True
        for a in range(width + 1):
            there, here = (
                (spaces.degree[d, a], spaces.degree[c, a]) if a < width else (spaces.replicas[d], spaces.replicas[c])
            )
            fits = fits and (there * less == here * more if a == axis else there == here)
        if fits:
            return d
    return -1


def chosen(c, way, less, spaces):  # type: ignore[no-untyped-def]
    """An axis that Config c cuts, its replicas counted as one more, whose degree `less` divides; -1 for none."""
    width, found = len(spaces.degree[c]), -1
    for a in range(width + 1):
        degree = spaces.degree[c, a] if a < width else spaces.replicas[c]
        if degree > 1 and degree % less == 0:
            found = a
            if way == 0:
                break
            way -= 1
    return found


def drawn(n, u, program, spaces):  # type: ignore[no-untyped-def]
    """Any Config of node n, by a uniform number."""
    first, last = spaces.first[program.space[n]], spaces.first[program.space[n] + 1]
    return first + min(int(u * (last - first)), last - first - 1)


def rare(u, v, choices):  # type: ignore[no-untyped-def]
    """A node of any kind, by two uniform numbers: one that is alone of its kind comes as often as one of many that are
    alike.
    """
    num_kinds = len(choices.kind_ptr) - 1
    k = min(int(u * num_kinds), num_kinds - 1)
    begin, size = choices.kind_ptr[k], choices.kind_ptr[k + 1] - choices.kind_ptr[k]
    return choices.kind[begin + min(int(v * size), size - 1)]


def put(n, c, count, plan, nodes, old):  # type: ignore[no-untyped-def]
    """Give node n Config c: how many nodes have changed then."""
    if plan[n] == c:
        return count
    nodes[count], old[count], plan[n] = n, plan[n], c
    return count + 1


def changed(i, draws, plan, program, spaces, choices, nodes, old):  # type: ignore[no-untyped-def]
    """Make move number i: of one node, a group, a region, or from a node to its neighbours. How many nodes have
    changed.

    nodes, old   are given which nodes changed, and the Configs that they had
    """
    num_nodes, num_groups = len(choices.beside_ptr) - 1, len(choices.group_ptr) - 1
    n = min(int(draws[i, 1] * num_nodes), num_nodes - 1)
    which = int(draws[i, 0] * REGIONS)
    if which == REGIONS - 1:
        return region(n, i, draws, plan, program, spaces, choices, nodes, old)
    if which % 3 == 0:
        u = draws[i, 2]
        if draws[i, 3] < BY_KIND:
            # Configs on all processors stand first in a space, and a node alone gains most often by these.
            n, u = rare(draws[i, 1], draws[i, 4], choices), u * u * u
        return put(n, drawn(n, u, program, spaces), 0, plan, nodes, old)
    if which % 3 == 1 or num_groups == 0:
        return spread(n, i, draws, plan, program, spaces, choices, nodes, old)
    return group(
        min(int(draws[i, 1] * num_groups), num_groups - 1), i, draws, plan, program, spaces, choices, nodes, old
    )


def group(g, i, draws, plan, program, spaces, choices, nodes, old):  # type: ignore[no-untyped-def]
    """Give all nodes of group g one Config: any, or that of one of them."""
    begin, end, count = choices.group_ptr[g], choices.group_ptr[g + 1], 0
    some = choices.group[begin + min(int(draws[i, 2] * (end - begin)), end - begin - 1)]
    c = plan[some] if draws[i, 3] < 0.5 else drawn(some, draws[i, 4], program, spaces)
    for k in range(begin, end):
        count = put(choices.group[k], c, count, plan, nodes, old)
    return count


def region(n, i, draws, plan, program, spaces, choices, nodes, old):  # type: ignore[no-untyped-def]
    """Take the nodes that follow node n in the program, as far as they are on its processors, elsewhere together."""
    num_nodes, bag, count = len(choices.beside_ptr) - 1, spaces.proc_bag[plan[n]], 0
    turn = min(int(draws[i, 2] * NUM_TURNS), NUM_TURNS - 1)
    for other in range(n, min(n + int(num_nodes ** draws[i, 3]), num_nodes)):
        if spaces.proc_bag[plan[other]] == bag:
            c = turned(plan[other], turn, program.space[other], spaces, choices)
            if c >= 0:
                count = put(other, c, count, plan, nodes, old)
    return count


def spread(n, i, draws, plan, program, spaces, choices, nodes, old):  # type: ignore[no-untyped-def]
    """Give a node's layout to a neighbour, from there perhaps to the next, and so on."""
    count = 0
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
        count, n = put(other, c, count, plan, nodes, old), other
        # The fraction that is left of the number after the choice of a neighbour is as good as a new draw.
        if draw - int(draw) > 0.75:
            break
    return count


INLINED = (likened, turned, drawn, rare, put)
PARTS = (changed, group, region, spread, likeness, turning, chosen)

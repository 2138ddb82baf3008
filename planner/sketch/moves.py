"""The moves of a walk: random changes to the Configs of one node, or of several related nodes.

A move takes a row of uniform numbers, and records which nodes it changed and the Configs that they had. Begin with
`make_move`. Compiled where numba is installed. It does not know how plans are timed.
"""

from __future__ import annotations

import numpy as np

# To which processors nodes are relocated: the lower or upper half of their own, others, or twice as many.
LOWER, UPPER, OTHERS, TWICE = 0, 1, 2, 3
# The ways of each of these: which axis is cut less or more, or how far away the others are.
NUM_WAYS = 3
NUM_RELOCATIONS = 4 * NUM_WAYS
# One of REGIONS moves relocates a region.
REGIONS = 9
# The share of single-node moves that draw a kind first, and then a node of it. Otherwise an embedding or a head would
# hardly ever be drawn in a network unrolled over many steps. A larger share harms plans of many nodes of one kind.
BY_KIND = 0.1
# The share of single-node moves, of any kind, in a coarse walk; the others are of groups.
SINGLE = 0.4


def coarse_draws(draws: np.ndarray) -> np.ndarray:
    """The draws of a coarse walk, made of those of a walk: it moves groups of nodes, and sometimes a node of any kind.

    Configs are drawn mostly from the beginning of a space, where those on all processors are.
    """
    found, is_one = draws.copy(), draws[:, 0] < SINGLE
    found[:, 0] = np.where(is_one, 0.0, 2.5 / REGIONS)
    found[:, 3] = np.where(is_one, 0.0, (1 + draws[:, 3]) / 2)
    found[:, 4] = np.where(is_one, draws[:, 4], draws[:, 4] ** 3)
    return found


def cached_match(c, other, b, program, spaces, choices):  # type: ignore[no-untyped-def]
    """`matching_config`, cached for each way to a neighbour and each Config."""
    at = choices.match_ptr[b] + c
    if choices.match[at] == 0:
        choices.match[at] = 2 + matching_config(c, other, b, program, spaces, choices)
    return choices.match[at] - 2


def matching_config(c, other, b, program, spaces, choices):  # type: ignore[no-untyped-def]
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
        for a in range(choices.along.shape[1]):
            along = choices.along[b, a]
            if spaces.degree[d, a] != (spaces.degree[c, along] if along >= 0 else 1):
                fits = False
                break
        if fits:
            return d
    return -1


def cached_relocation(c, relocation, kind, spaces, choices):  # type: ignore[no-untyped-def]
    """`relocated_config`, cached for each Config; relocation: NUM_WAYS * direction + way."""
    at = relocation * len(spaces.split) + c
    if choices.relocated[at] == 0:
        choices.relocated[at] = 2 + relocated_config(c, relocation // NUM_WAYS, relocation % NUM_WAYS, kind, spaces)
    return choices.relocated[at] - 2


def relocated_config(c, direction, way, kind, spaces):  # type: ignore[no-untyped-def]
    """The Config of this space on other processors, cut as Config c except for one axis; -1 for none.

    direction   LOWER or UPPER half of its processors, OTHERS (an equal number beside them), or TWICE as many
    way         which axis is cut more or less, or how far away the others are
    """
    size, low, width = (
        spaces.proc_ptr[c + 1] - spaces.proc_ptr[c],
        spaces.procs[spaces.proc_ptr[c]],
        len(spaces.degree[c]),
    )
    axis, more, less = -1, 1, 1
    if direction == OTHERS:
        low = (low // size ^ 1 << way) * size
    else:
        more, less = (2, 1) if direction == TWICE else (1, 2)
        axis = scaled_axis(c, way, less, spaces)
        if axis < 0:
            return -1
        size = size * more // less
        low = low // size * size if direction == TWICE else low + (direction == UPPER) * size
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


def scaled_axis(c, way, less, spaces):  # type: ignore[no-untyped-def]
    """The axis to scale: the `way`-th, or last, that Config c cuts and whose degree `less` divides; replicas count as
    an axis. -1 for none.
    """
    width, found = len(spaces.degree[c]), -1
    for a in range(width + 1):
        degree = spaces.degree[c, a] if a < width else spaces.replicas[c]
        if degree > 1 and degree % less == 0:
            found = a
            if way == 0:
                break
            way -= 1
    return found


def random_config(n, u, program, spaces):  # type: ignore[no-untyped-def]
    """A Config of node n, by a uniform number."""
    first, last = spaces.first[program.space[n]], spaces.first[program.space[n] + 1]
    return first + min(int(u * (last - first)), last - first - 1)


def node_of_any_kind(u, v, choices):  # type: ignore[no-untyped-def]
    """A node, by two uniform numbers: the first draws its kind, so that all kinds are equally likely."""
    num_kinds = len(choices.kind_ptr) - 1
    k = min(int(u * num_kinds), num_kinds - 1)
    begin, size = choices.kind_ptr[k], choices.kind_ptr[k + 1] - choices.kind_ptr[k]
    return choices.kind[begin + min(int(v * size), size - 1)]


def set_config(n, c, count, plan, nodes, old):  # type: ignore[no-untyped-def]
    """Set node n to Config c; returns the new number of changed nodes."""
    if plan[n] == c:
        return count
    nodes[count], old[count], plan[n] = n, plan[n], c
    return count + 1


def make_move(i, draws, plan, program, spaces, choices, nodes, old):  # type: ignore[no-untyped-def]
    """Make the move of row i of `draws`: of one node, a group, a region, or along neighbours. Returns the number of
    changed nodes.

    nodes, old   filled with the changed nodes, and the Configs that they had
    """
    num_nodes, num_groups = len(choices.beside_ptr) - 1, len(choices.group_ptr) - 1
    n = min(int(draws[i, 1] * num_nodes), num_nodes - 1)
    which = int(draws[i, 0] * REGIONS)
    if which == REGIONS - 1:
        return relocate_region(n, i, draws, plan, program, spaces, choices, nodes, old)
    if which % 3 == 0:
        u = draws[i, 2]
        if draws[i, 3] < BY_KIND:
            # Configs on all processors come first in a space, and suit a node that is alone of its kind most often.
            n, u = node_of_any_kind(draws[i, 1], draws[i, 4], choices), u * u * u
        return set_config(n, random_config(n, u, program, spaces), 0, plan, nodes, old)
    if which % 3 == 1 or num_groups == 0:
        return spread_layout(n, i, draws, plan, program, spaces, choices, nodes, old)
    return change_group(
        min(int(draws[i, 1] * num_groups), num_groups - 1), i, draws, plan, program, spaces, choices, nodes, old
    )


def change_group(g, i, draws, plan, program, spaces, choices, nodes, old):  # type: ignore[no-untyped-def]
    """Set all nodes of group g to one Config: a random one, or that of one of them."""
    begin, end, count = choices.group_ptr[g], choices.group_ptr[g + 1], 0
    some = choices.group[begin + min(int(draws[i, 2] * (end - begin)), end - begin - 1)]
    c = plan[some] if draws[i, 3] < 0.5 else random_config(some, draws[i, 4], program, spaces)
    for k in range(begin, end):
        count = set_config(choices.group[k], c, count, plan, nodes, old)
    return count


def relocate_region(n, i, draws, plan, program, spaces, choices, nodes, old):  # type: ignore[no-untyped-def]
    """Relocate node n and nodes after it in the program that are on the same processors, together."""
    num_nodes, bag, count = len(choices.beside_ptr) - 1, spaces.proc_bag[plan[n]], 0
    relocation = min(int(draws[i, 2] * NUM_RELOCATIONS), NUM_RELOCATIONS - 1)
    for other in range(n, min(n + int(num_nodes ** draws[i, 3]), num_nodes)):
        if spaces.proc_bag[plan[other]] == bag:
            c = cached_relocation(plan[other], relocation, program.space[other], spaces, choices)
            if c >= 0:
                count = set_config(other, c, count, plan, nodes, old)
    return count


def spread_layout(n, i, draws, plan, program, spaces, choices, nodes, old):  # type: ignore[no-untyped-def]
    """Spread the Config of node n to a neighbour, from there perhaps to the next, and so on."""
    count = 0
    for hop in range(draws.shape[1] - 4):
        size = choices.beside_ptr[n + 1] - choices.beside_ptr[n]
        if size == 0:
            break
        draw = draws[i, 3 + hop] * size
        b = choices.beside_ptr[n] + min(int(draw), size - 1)
        other = choices.beside[b]
        c = cached_match(plan[n], other, b, program, spaces, choices)
        if c < 0:
            break
        for k in range(count):
            if nodes[k] == other:
                return count
        count, n = set_config(other, c, count, plan, nodes, old), other
        # The fraction of the draw that the choice of a neighbour leaves is as good as a new draw.
        if draw - int(draw) > 0.75:
            break
    return count


INLINED = (cached_match, cached_relocation, random_config, node_of_any_kind, set_config)
PARTS = (make_move, change_group, relocate_region, spread_layout, matching_config, relocated_config, scaled_axis)

"""Groups and neighbours of nodes for the moves of a walk, as flat arrays; nodes of a group share a space.

It does not know which moves are made, nor what they cost.
"""

from __future__ import annotations

import numpy as np

from castile.planner.choices.moves import groups_of
from castile.planner.choices.neighbours import neighbours_of
from castile.planner.lower import Lowering
from castile.planner.lowering.ragged import first_seen_numbers, row_pointers
from castile.planner.sketch.arrays import Choices
from castile.planner.sketch.moves import NUM_RELOCATIONS
from castile.planner.sketch.spaces import SpaceTable


def choices_of(lowering: Lowering, kinds: np.ndarray, spaces: np.ndarray, table: SpaceTable) -> Choices:
    """The groups and neighbours of nodes of these kinds and spaces."""
    graph = lowering.piece
    number, space_of = {name: n for n, name in enumerate(graph.nodes)}, spaces.tolist()
    groups: list[list[int]] = []
    for group in groups_of(graph, lowering.templates.cost_kind):
        of_space: dict[int, list[int]] = {}
        for n in [number[name] for name in group]:
            of_space.setdefault(space_of[n], []).append(n)
        groups += [some for some in of_space.values() if len(some) > 1]
    pairs = neighbours_of(graph, lowering.templates.node_kind)
    # Most pairs of neighbours have equal spaces, and equal pairs of axes along each other.
    here, there, count = spaces[pairs.node], spaces[pairs.other], len(table.axes)
    way, first = first_seen_numbers((pairs.way * count + here) * count + there)
    ways = np.stack([here, there, pairs.way])[:, first].T.tolist()
    along, match_ptr = np.full((max(len(ways), 1), table.width), -1), np.zeros(max(len(ways), 1), np.int64)
    tables: dict[object, int] = {}
    size = 0
    for k, (mine, other, pairing) in enumerate(ways):
        ours, theirs = table.axes[mine], table.axes[other]
        for axis, beside in pairs.along[pairing].items():
            if beside in theirs and axis in ours:
                along[k, theirs.index(beside)] = ours.index(axis)
        key = mine, other, along[k].tobytes()
        if key not in tables:
            tables[key] = size - int(table.first[mine])
            size += int(table.first[mine + 1] - table.first[mine])
        match_ptr[k] = tables[key]
    return Choices(
        row_pointers(np.bincount(kinds)), np.argsort(kinds, kind="stable"),
        row_pointers([len(group) for group in groups]), np.array([n for group in groups for n in group], np.int64),
        row_pointers(np.bincount(pairs.node, minlength=len(number))), pairs.other, along[way], match_ptr[way],
        np.zeros(size, np.int64), np.zeros(NUM_RELOCATIONS * int(table.first[-1]), np.int64),
    )  # fmt: skip

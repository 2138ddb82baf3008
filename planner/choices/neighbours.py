"""Neighbours: pairs of nodes that touch the same tensor, other than a parameter, and which of their axes run along the
same dim of it.

They are flat arrays, as there are many pairs. They do not know strategies or processors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np

from castile.planner.graph import Graph, Node
from castile.planner.lowering.ragged import first_seen_numbers, ranges


class Neighbours(NamedTuple):
    """B pairs of neighbours, ascending by the first node; nodes are numbered in the graph's order.

    node[B], other[B]
    way[B]   the number in `along` of the map from the node's axes to the other's
    along    maps from axes to axes
    """

    node: np.ndarray
    other: np.ndarray
    way: np.ndarray
    along: list[dict[str, str]]


def neighbours_of(graph: Graph, kind: Callable[[Node], int]) -> Neighbours:
    """The neighbours of each node, tensor by tensor in the order in which tensors are first touched.

    kind   equal for nodes of the same operator and shapes
    """
    tensor, node, dims, named = _touching(graph, kind)
    order = np.argsort(tensor, kind="stable")
    tensor, node, dims = tensor[order], node[order], dims[order]
    # All pairs of nodes that touch one tensor.
    first, end = (np.searchsorted(tensor, tensor, side) for side in ("left", "right"))
    mine, count = np.repeat(np.arange(len(tensor)), end - first), end - first
    other = ranges(first, count)
    apart = node[mine] != node[other]
    mine, other = mine[apart], other[apart]
    order = np.argsort(node[mine], kind="stable")
    mine, other = mine[order], other[order]
    way, firsts = first_seen_numbers(dims[mine] * len(named) + dims[other])
    ways = zip(dims[mine[firsts]].tolist(), dims[other[firsts]].tolist(), strict=True)
    return Neighbours(node[mine], node[other], way, [dict(zip(named[ours], named[theirs])) for ours, theirs in ways])


def _touching(graph: Graph, kind: Callable[[Node], int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, list]:
    """A row for each node and tensor that it touches: numbers of the tensor, the node and its axes along the tensor's
    dims; and the axes by number.
    """
    tensors: dict[str, int] = {}
    numbers: dict[tuple[str, ...], int] = {}
    of_kind: dict[Hashable, list[int]] = {}
    rows = []
    for number, node in enumerate(graph.nodes.values()):
        like = kind(node)
        if like not in of_kind:
            every = (*node.alignment.operands, *node.alignment.results)
            axes = [tuple([dim[0] for dim in operand.dims if dim]) for operand in every]
            of_kind[like] = [numbers.setdefault(dims, len(numbers)) for dims in axes]
        for name, dims in zip((*node.inputs, *node.outputs), of_kind[like]):
            if not graph.tensors[name].param:
                rows.append((tensors.setdefault(name, len(tensors)), number, dims))
    return *np.array(rows, np.int64).reshape(-1, 3).T, list(numbers)

"""Images lie with their channels innermost: a place's channels together, as products of matrices want them.

Shapes, axes and what operators compute stay as they are; only the order of dims in memory differs (PyTorch's memory
format of that name). It goes from convolutions on to what has images of the same order of dims. What the host provides
or reads and parameters stay as they come. It does not know kernels.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from castile.planner.graph import Graph, with_orders

# Samples, rows, columns, channels.
ORDER = (0, 2, 3, 1)
CONVOLUTIONS = ("conv2d", "conv_transpose2d")


def rewrite(graph: Graph) -> Graph:
    """The graph with its images so."""
    orders = graph.orders | dict.fromkeys(_images(graph), ORDER)
    return replace(graph, nodes={name: with_orders(node, orders) for name, node in graph.nodes.items()})


def _images(graph: Graph) -> set[str]:
    """What convolutions read and make, and what other nodes make of that or read beside it."""
    made = {name for node in graph.nodes.values() for name in node.outputs}
    free = {name for name in made.difference(graph.outputs) if len(graph.tensors[name].shape) == len(ORDER)}
    beside: dict[str, set[str]] = defaultdict(set)
    found: list[str] = []
    for node in graph.nodes.values():
        near = free.intersection((*node.inputs, *node.outputs))
        for name in near:
            beside[name] |= near
        found += near if node.op.name in CONVOLUTIONS else []
    turned: set[str] = set()
    while found:
        name = found.pop()
        if name not in turned:
            turned.add(name)
            found += beside[name]
    return turned

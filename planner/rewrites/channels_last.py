"""Images lie with their channels innermost: a place's channels together, as products of matrices want them.

Shapes, axes and what operators compute stay as they are; only the order of dims in memory differs (PyTorch's memory
format of that name). It goes from convolutions on to what has images of the same order of dims. What the host provides
or reads and parameters stay as they come. It does not know kernels.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from castile.planner.axes import Operand
from castile.planner.graph import Graph

# Samples, rows, columns, channels.
ORDER = (0, 2, 3, 1)
CONVOLUTIONS = ("conv2d", "conv_transpose2d")


def rewrite(graph: Graph) -> Graph:
    """The graph with its images so."""
    turned = _images(graph)

    def laid(own: Operand, name: str) -> Operand:
        return replace(own, order=ORDER) if name in turned else own

    nodes = {}
    for name, node in graph.nodes.items():
        a = node.alignment
        operands = tuple(laid(own, x) for own, x in zip(a.operands, node.inputs, strict=True))
        results = tuple(laid(own, y) for own, y in zip(a.results, node.outputs, strict=True))
        nodes[name] = replace(node, alignment=replace(a, operands=operands, results=results))
    return replace(graph, nodes=nodes)


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

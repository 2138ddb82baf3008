"""Experts: which nodes have a matrix for each of several groups of what they work on, and so are cut by these groups.

What is cut so has its part of the parameters and of what they are multiplied with, and sums nothing over processors:
only tokens come and go, from each to each (Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation
and Automatic Sharding", ICLR 2021). It does not know processors or samples.
"""

from __future__ import annotations

from collections.abc import Mapping

from castile.planner.axes import Alignment
from castile.planner.graph import Graph, Node


def experts(graph: Graph) -> dict[str, str]:
    """The axis of groups of each node that works on them apart, by the node's name; in the order of the graph."""
    found: dict[str, str] = {}
    # Of what flows between such nodes the dim of the groups.
    apart: dict[str, int] = {}
    matrices = {a: axis for a in {node.alignment for node in graph.nodes.values()} if (axis := _of_matrices(a))}
    for node in graph.nodes.values() if matrices else ():
        axis = matrices.get(node.alignment) or _arriving(node, apart)
        if axis:
            found[node.name] = axis
            for tensor, operand in zip(node.outputs, node.alignment.results, strict=True):
                apart[tensor] = operand.dims.index((axis,))
    return found


def _of_matrices(a: Alignment) -> str:
    """The axis along which parameters are one matrix after the other, each multiplied with what is its own; else ""."""
    params = [o for o in a.operands if o.param]
    made = {axis for result in a.results for axis in result.axes} if params else set()
    if all(made.issuperset(o.axes) for o in params):
        return ""
    return next((axis for axis in a.axes if _is_everywhere(a, axis)), "")


def _arriving(node: Node, apart: Mapping[str, int]) -> str:
    """The axis along which what arrives is of one group after the other, and stays so; else ""."""
    rows = zip(node.inputs, node.alignment.operands, strict=True)
    axes = {o.dims[apart[tensor]][0] for tensor, o in rows if tensor in apart and o.dims[apart[tensor]]}
    return next((axis for axis in axes if _is_everywhere(node.alignment, axis)), "")


def _is_everywhere(a: Alignment, axis: str) -> bool:
    """Whether all operands and results have a dim of this axis, which may be cut."""
    every = (*a.operands, *a.results)
    return axis not in a.frozen and all((axis,) in operand.dims for operand in every)

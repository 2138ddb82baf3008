"""Heads: which products of two arrays are made apart for each of several heads, as attention's are, and can be cut so.

Cut along the positions of results, each part needs all of what is multiplied with these, keys and values; cut along
heads, its own only, and what comes from and goes to nodes cut along positions goes from each to each (Jacobs et al.,
"DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long Sequence Transformer Models", 2023). It
does not know processors.
"""

from __future__ import annotations

from collections.abc import Mapping

from castile.planner.graph import Graph, Node

# Axes of samples are cut otherwise.
SAMPLES = "b"


def heads(graph: Graph) -> dict[str, str]:
    """The axis of heads of each such product, and of all that lies between two of them, by the node's name; in the
    order of the graph.
    """
    found: dict[str, str] = {}
    # Of what flows from such nodes the dim of the heads.
    apart: dict[str, int] = {}
    for node in graph.nodes.values():
        if axis := _of_products(node) or _arriving(node, apart):
            found[node.name] = axis
            apart.update(node.results_over(axis))
    return _as_far_as_products(graph, found)


def _of_products(node: Node) -> str:
    """The axis that all operands and results of a product of activations bear, where results have positions of which
    some operand knows nothing; else ""."""
    operands, results = node.alignment.operands, node.alignment.results
    made, met = ({x for o in several for x in o.axes} for several in (results, operands))
    summed = [x for x in met - made if sum(x in o.axes for o in operands) > 1]
    places = {x for x in made if _is_free(node, x)}
    if not summed or any(o.param for o in operands) or all(places <= {*o.axes} for o in operands):
        return ""
    every = [{dim[0] for dim in o.dims if dim} for o in (*operands, *results)]
    return next((x for x in node.alignment.axes if _is_free(node, x) and all(x in axes for axes in every)), "")


def _arriving(node: Node, apart: Mapping[str, int]) -> str:
    """The axis along which heads arrive, if it is one that all results bear and no parameter could; else ""."""
    a = node.alignment
    dims = [o.dims[apart[t]] for t, o in zip(node.inputs, a.operands, strict=True) if t in apart]
    axes = {dim[0] for dim in dims if dim}
    axis = axes.pop() if len(axes) == 1 else ""
    is_carried = len(node.results_over(axis)) == len(node.outputs) and not any(o.param for o in a.operands)
    return axis if is_carried and _is_free(node, axis) else ""


def _as_far_as_products(graph: Graph, found: Mapping[str, str]) -> dict[str, str]:
    """What was found, without what no product comes behind."""
    wanted, kept = set[str](), set[str]()
    for node in reversed(graph.nodes.values()):
        if node.name in found and (_of_products(node) or not wanted.isdisjoint(node.outputs)):
            kept.add(node.name)
            wanted.update(node.inputs)
    return {name: axis for name, axis in found.items() if name in kept}


def _is_free(node: Node, axis: str) -> bool:
    a = node.alignment
    return axis != SAMPLES and axis not in a.frozen and a.extents[axis] > 1

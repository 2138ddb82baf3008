"""Logits lie with their classes outermost: what all samples have of a class together.

Rows of as many numbers as there are classes begin anywhere in memory, and the three products that make and read them
would fetch each number alone; rows of samples begin at boundaries, whatever the number of classes. What blocks of
classes tell of a loss lies so, too. Shapes, axes and what operators compute stay as they are. Logits that anything
makes or reads but products, losses and arithmetic on each element lie as they come. It does not know kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace

from castile.planner.graph import Graph, Node, with_orders
from castile.planner.op import Op

# Their first operand are logits; the second one's result is what blocks of classes tell, which has two dims of it.
WHOLE, BLOCKS = "cross_entropy", "block_entropy"
PRODUCTS = ("linear", "contract")
MERGE = "split_cross_entropy"


def rewrite(graph: Graph) -> Graph:
    """The graph with its logits so; what has an order of its own keeps it."""
    orders = _orders(graph) | graph.orders
    return replace(graph, nodes={name: with_orders(node, orders) for name, node in graph.nodes.items()})


def _orders(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Of logits, what they are made of on each element, and what blocks of them tell."""
    users: dict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes.values():
        for name in {*node.inputs, *node.outputs}:
            users[name].append(node)
    # What renews a state takes tensors as they come.
    made = {name for node in graph.nodes.values() for name in node.outputs}
    made -= {name for node in graph.updates.values() for name in node.inputs}
    found: dict[str, tuple[int, ...]] = {}
    for node in graph.nodes.values():
        logits = node.inputs[0] if node.op.name in (WHOLE, BLOCKS) else None
        if logits not in made:
            continue
        group = {logits} if logits in found else _together(logits, users, made)
        found |= {name: _outermost(graph, name, 1) for name in group}
        entropies = node.outputs[0]
        if group and node.op.name == BLOCKS and all(user.op.name in (BLOCKS, MERGE) for user in users[entropies]):
            found[entropies] = _outermost(graph, entropies, 2)
    return found


def _together(logits: str, users: Mapping[str, list[Node]], made: Collection[str]) -> set[str]:
    """All that has to lie as these logits do; nothing where somebody takes or makes it in no other way."""
    group, waiting = {logits}, [logits]
    while waiting:
        name = waiting.pop()
        for node in users[name]:
            beside = _beside(node, name)
            if beside is None:
                return set()
            new = beside.intersection(made) - group
            group |= new
            waiting += new
    return group


def _beside(node: Node, name: str) -> set[str] | None:
    """What of a node has to lie as one of its tensors does; None where that has to lie as it comes."""
    a, op = node.alignment, node.op
    if op.name in PRODUCTS or (op.name in (WHOLE, BLOCKS) and name == node.inputs[0]):
        return {name}
    result = a.results[0]
    borne = dict(zip((*node.inputs, *node.outputs), (*a.operands, *a.results), strict=True))
    is_each = len(a.results) == 1 and type(op).reads is Op.reads and a.frozen.isdisjoint(a.axes)
    if not is_each or not set(a.axes) <= set(result.axes) or borne[name].dims != result.dims:
        return None
    return {one for one, own in borne.items() if own.dims == result.dims}


def _outermost(graph: Graph, name: str, num: int) -> tuple[int, ...]:
    """The order in which the last dims of a tensor, so many, lie outside the others; () where it has no others."""
    dims = range(len(graph.tensors[name].shape))
    return (*dims[-num:], *dims[:-num]) if len(dims) > num else ()

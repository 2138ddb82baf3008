"""Chains of operators on each element become one node, so that what lies between them never goes to memory.

A node joins those that read what it gives if all of them are of one chain, and of the same shape. A convolution
leaves its bias to the chain that follows it, which comes after the sum of partial products as ever; a linear layer adds
its own before it writes anything. It does not know which plan the graph will get.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from castile.planner.bodies.fusing import is_line
from castile.planner.bodies.trace import record
from castile.planner.bodies.vocabulary import Spec
from castile.planner.graph import Graph, Node, with_orders
from castile.planner.op import Op
from castile.planner.ops.channel_bias import ChannelBias
from castile.planner.ops.fused import Fused, Member

# Operators of which a third operand is a bias of channels, added in a call of its own.
BIASED = ("conv1d", "conv2d", "conv_transpose2d")


def rewrite(graph: Graph) -> Graph:
    """The graph with one node for each longest chain, which has the name of its last member and knows the others'."""
    joins = _joins(graph)
    chains: dict[str, list[Node]] = {}
    for node in reversed(graph.nodes.values()):
        if node.name in joins:
            last = joins[node.name]
            chains.setdefault(last, [graph.nodes[last]]).insert(0, node)
    nodes: dict[str, Node] = {}
    for node in graph.nodes.values():
        if node.name in chains:
            nodes[node.name] = _fused(chains[node.name], graph)
        elif node.name not in joins:
            nodes[node.name] = node
        elif _has_bias(node):
            nodes[node.name] = _bound(node, node.op, node.inputs[:2], graph)
    given = {name for node in nodes.values() for name in node.outputs}
    gone = {name for node in graph.nodes.values() for name in node.outputs} - given
    orders = graph.orders
    nodes = {name: with_orders(node, orders) for name, node in nodes.items()}
    return replace(graph, nodes=nodes, tensors={n: t for n, t in graph.tensors.items() if n not in gone})


def _joins(graph: Graph) -> dict[str, str]:
    """For each node that joins others the last of its chain."""
    readers: dict[str, set[str]] = defaultdict(set)
    for node in (*graph.nodes.values(), *graph.updates.values()):
        for name in node.inputs:
            readers[name].add(node.name)
    kinds = {t.name: (t.shape, t.dtype) for t in graph.tensors.values()}
    simple = {node.name for node in graph.nodes.values() if _is_simple(node, graph)}
    joins: dict[str, str] = {}
    for name, node in reversed(graph.nodes.items()):
        is_seen = name in graph.outputs or name == graph.loss or not readers[name] <= simple
        lasts = {joins.get(reader, reader) for reader in readers[name]}
        if not is_seen and len(lasts) == 1 and (name in simple or _has_bias(node)):
            (last,) = lasts
            if kinds[name] == kinds[last]:
                joins[name] = last
    return joins


def _is_simple(node: Node, graph: Graph) -> bool:
    """Whether a node works on each element alone, by kernels that are lines, and no part of it gives a partial sum."""
    op, a = node.op, node.alignment
    if len(op.results) > 1 or type(op).reads is not Op.reads or not (op.has("B") or op.flows == 0):
        return False
    if not set(a.axes) - a.frozen <= set(a.results[0].axes) or any(len(d) > 1 for o in a.operands for d in o.dims):
        return False
    specs = [Spec(graph.tensors[name].shape, graph.tensors[name].dtype) for name in node.inputs]
    context = {"at": node.whole()} if "at" in op.asks("F") else {}
    steps = record(op.forward, specs, None, **context).steps  # type: ignore[attr-defined]
    return bool(steps) and all(is_line(step) for step in steps)


def _has_bias(node: Node) -> bool:
    return node.op.name in BIASED and len(node.inputs) == 3


def _fused(nodes: Sequence[Node], graph: Graph) -> Node:
    """One node for a chain; of what leaves its bias it has the sum of that and the bias."""
    inner = {node.name for node in nodes}
    rows = [
        (
            node.name,
            *((ChannelBias(), (node.name, node.inputs[2])) if _has_bias(node) else (node.op, node.inputs)),
        )
        for node in nodes
    ]
    operands = dict.fromkeys(name for made, _, reads in rows for name in reads if name not in inner or name == made)
    number = {name: n for n, name in enumerate(operands)}
    members = []
    for made, op, reads in rows:
        members.append(Member(op, tuple(number[name] for name in reads)))
        number[made] = len(operands) + len(members) - 1
    # What leaves its bias stays a node of its own; the bias is known by its parameter's name.
    names = tuple(node.inputs[2] if _has_bias(node) else node.name for node in nodes[:-1])
    return msgspec.structs.replace(_bound(nodes[-1], Fused(tuple(members)), tuple(operands), graph), members=names)


def _bound(node: Node, op: Op, inputs: tuple[str, ...], graph: Graph) -> Node:
    """Another operator, on other operands, in place of a node."""
    return Node(node.name, op, inputs, node.outputs, op.bind(tuple(graph.tensors[i] for i in inputs), node.name))

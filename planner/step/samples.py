"""The sample axis through a graph: which dim of each tensor, and which axis of each node, runs over samples.

Microbatches are a split of that axis in time. It does not know programs, strategies or processors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from castile.planner.axes import canonical, dims_over
from castile.planner.graph import Graph, Node


@dataclass(frozen=True)
class Samples:
    """By tensor the dim over samples (`dims`), and by node its sample axis (`axes`), for those that have one."""

    dims: Mapping[str, int]
    axes: Mapping[str, str]


def follow(graph: Graph) -> Samples:
    """Follow the first dim of every input through the graph, and back to tensors that are the same for each sample, as
    a class token is. Where samples of several operands meet, follow those of the first.
    """
    dims: dict[str, int] = dict.fromkeys(graph.inputs, 0)
    axes: dict[str, str] = {}
    for node in graph.nodes.values():
        borne = zip(node.inputs, node.alignment.operands, strict=True)
        if axis := next((operand.dims[dims[t]][0] for t, operand in borne if t in dims), ""):
            axes[node.name] = axis
            dims.update(node.results_over(axis))
    made = {tensor: node.name for node in graph.nodes.values() for tensor in node.outputs}
    for node in reversed(graph.nodes.values()):
        a = node.alignment
        wanted = (operand.dims[dims[t]][0] for t, operand in zip(node.outputs, a.results, strict=True) if t in dims)
        if axis := axes.get(node.name) or next(wanted, ""):
            axes[node.name] = axis
            before = dims_over(axis, node.inputs, a.operands).items()
            dims.update({t: dim for t, dim in before if t in made and made[t] not in axes})
            dims.update(node.results_over(axis))
    return Samples(dims, axes)


def trace(graph: Graph, count: int) -> Samples:
    """Follow the first dim of every input through the graph, as `follow` does.

    Raises ValueError, naming the node, where the graph cannot be cut into `count` microbatches: the axis may not be
    split there or not into equal parts, samples meet, or a result over all samples is read for each microbatch.
    """
    dims: dict[str, int] = dict.fromkeys(graph.inputs, 0)
    axes: dict[str, str] = {}
    summed: dict[str, str] = {}
    alike = follow(graph).axes
    for node in graph.nodes.values():
        axis = _axis(node, dims, alike.get(node.name))
        over_all = next((t for t in node.inputs if t in summed), None)
        if axis is None:
            summed.update({t: summed[over_all] for t in node.outputs} if over_all else {})
            continue
        if over_all:
            raise ValueError(
                f"{node.name}: needs {over_all!r}, which {summed[over_all]} computes over the whole batch, for each "
                f"microbatch: this model cannot be trained in {count} microbatches"
            )
        extent = node.alignment.extents[axis]
        if axis in node.alignment.frozen:
            raise ValueError(f"{node.name} ({node.op.name}) takes the batch whole: it cannot be cut into microbatches")
        if extent % count:
            raise ValueError(f"{node.name}: {extent} along the sample axis do not make {count} equal microbatches")
        axes[node.name] = axis
        cut = node.results_over(axis)
        dims.update(cut)
        summed.update({tensor: node.name for tensor in node.outputs if tensor not in cut})
    return Samples(dims, axes)


def piece(graph: Graph, count: int) -> Graph:
    """The graph for one of `count` microbatches, with shorter sample axes."""
    if count == 1:
        return graph
    axes = trace(graph, count).axes
    nodes = dict(graph.nodes)
    for name, axis in axes.items():
        a = nodes[name].alignment
        shorter = canonical(replace(a, extents={**a.extents, axis: a.extents[axis] // count}))
        nodes[name] = msgspec.structs.replace(nodes[name], alignment=shorter)
    return replace(graph, nodes=nodes)


def _axis(node: Node, dims: Mapping[str, int], alike: str | None) -> str | None:
    """The sample axis of a node, the same for all operands that have samples.

    alike   the axis where no operand has samples and the node's results are the same for each; None otherwise
    Raises ValueError where samples meet.
    """
    found = {
        operand.dims[dims[tensor]][0]
        for tensor, operand in zip(node.inputs, node.alignment.operands, strict=True)
        if tensor in dims
    }
    axis = found.pop() if found else alike
    foreign = [
        tensor
        for tensor, operand in zip(node.inputs, node.alignment.operands, strict=True)
        if axis in operand.axes and (tensor not in dims or operand.dims[dims[tensor]][0] != axis)
    ]
    if found or foreign:
        raise ValueError(f"{node.name} ({node.op.name}) lets samples meet: it cannot be cut into microbatches")
    return axis

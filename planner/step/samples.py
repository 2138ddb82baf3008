"""The sample axis through a graph: which dim of each tensor runs over samples, and by which axis each node bears it.

A microbatch is a split of that axis in time. It does not know programs, strategies or processors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from castile.planner.axes import only
from castile.planner.graph import Graph, Node


@dataclass(frozen=True)
class Samples:
    """dims: tensor -> the dim over samples; axes: node -> its sample axis. What bears no samples is in neither."""

    dims: Mapping[str, int]
    axes: Mapping[str, str]


def trace(graph: Graph, count: int) -> Samples:
    """Follow the first dim of every input through the graph.

    Raises ValueError, naming the node, where `count` microbatches cannot be: the axis may not be split there or not
    into as many equal parts, samples meet other samples, or what is computed over all samples is wanted for each.
    """
    dims = {name: 0 for name in graph.inputs}
    axes: dict[str, str] = {}
    summed: dict[str, str] = {}
    for node in graph.nodes.values():
        axis = _axis(node, dims)
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
        for tensor, operand in zip(node.outputs, node.alignment.results, strict=True):
            cut = [n for n, dim in enumerate(operand.dims) if dim and dim[0] == axis]
            if cut:
                dims[tensor] = cut[0]
            else:
                summed[tensor] = node.name
    return Samples(dims, axes)


def piece(graph: Graph, count: int) -> Graph:
    """The graph as one of `count` microbatches sees it: its nodes' sample axes are that much shorter."""
    if count == 1:
        return graph
    axes = trace(graph, count).axes
    nodes = dict(graph.nodes)
    for name, axis in axes.items():
        a = nodes[name].alignment
        shorter = only(replace(a, extents={**a.extents, axis: a.extents[axis] // count}))
        nodes[name] = msgspec.structs.replace(nodes[name], alignment=shorter)
    return replace(graph, nodes=nodes)


def _axis(node: Node, dims: Mapping[str, int]) -> str | None:
    """The axis of a node that runs over samples, the same for all operands that bear samples."""
    found = {
        operand.dims[dims[tensor]][0]
        for tensor, operand in zip(node.inputs, node.alignment.operands, strict=True)
        if tensor in dims
    }
    if not found:
        return None
    axis = found.pop()
    foreign = [
        tensor
        for tensor, operand in zip(node.inputs, node.alignment.operands, strict=True)
        if axis in operand.axes and (tensor not in dims or operand.dims[dims[tensor]][0] != axis)
    ]
    if found or foreign:
        raise ValueError(f"{node.name} ({node.op.name}) lets samples meet: it cannot be cut into microbatches")
    return axis

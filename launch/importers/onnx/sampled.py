"""Samples in a network of others: their axis is called b in every node that has it, and what all share is held once.

Known plans cut along the axis of that name, and of microbatches each has its own samples. It does not know files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from castile.launch.importers.onnx.values import Known
from castile.planner.axes import Alignment, Operand, canonical, fresh, parse
from castile.planner.graph import Graph, Node
from castile.planner.known.megatron import SAMPLES
from castile.planner.step.samples import follow


def named(g: Graph) -> None:
    """Calls the axis of samples b in all nodes of a graph, and in what it is given and they make; no other is."""
    found = follow(g).axes
    for tensor in map(g.tensors.__getitem__, g.inputs):
        names = _names(tensor.axes, tensor.axes[0])
        g.tensors[tensor.name] = replace(tensor, axes=tuple(names.get(axis, axis) for axis in tensor.axes))
    for node in list(g.nodes.values()):
        a = _renamed(node, found.get(node.name, ""))
        g.nodes[node.name] = msgspec.structs.replace(node, alignment=a)
        for name, operand in zip(node.outputs, a.results, strict=True):
            g.tensors[name] = replace(g.tensors[name], axes=tuple(dim[0] for dim in operand.dims))


def once(value: Known, batch: int) -> Known:
    """Known numbers, where they are the same for each sample of one: along dims as long as the batch."""
    array = value.array
    alike = [n == batch > 1 and bool((array == array.take([0], dim)).all()) for dim, n in enumerate(value.shape)]
    if not any(alike):
        return value
    shape = tuple(1 if is_alike else n for n, is_alike in zip(value.shape, alike, strict=True))
    return value.derived("", shape, lambda array: array[tuple(slice(n) for n in shape)])


def _names(axes: Iterable[str], samples: str) -> dict[str, str]:
    """What axes are to be called that are called otherwise, where one of them, or none, is that of samples."""
    taken = {*axes}
    others = {SAMPLES: fresh(SAMPLES, taken)} if SAMPLES in taken else {}
    return {} if samples == SAMPLES else others | ({samples: SAMPLES} if samples else {})


def _renamed(node: Node, samples: str) -> Alignment:
    """A node's alignment with its axes called so; those that its operator calls by name keep their names."""
    a, line = node.alignment, parse(type(node.op).line)
    own = {axis for operand in (*line.operands, *line.results) for axis in operand.axes}
    names = _names(a.axes, samples)
    if not names or not own.isdisjoint(names):
        return a

    def called(axes: Iterable[str]) -> tuple[str, ...]:
        return tuple(names.get(axis, axis) for axis in axes)

    def borne(operands: Iterable[Operand]) -> tuple[Operand, ...]:
        return tuple(msgspec.structs.replace(one, dims=tuple(map(called, one.dims))) for one in operands)

    extents: Mapping[str, int] = dict(zip(called(a.extents), a.extents.values(), strict=True))
    frozen, uneven = frozenset(called(a.frozen)), frozenset(called(a.uneven))
    return canonical(Alignment(called(a.axes), extents, borne(a.operands), borne(a.results), frozen, uneven))

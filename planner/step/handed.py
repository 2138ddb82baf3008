"""Gradients that a pass hands on as they came: those of the terms of a sum are the sum's own, or pieces of one.

They are found in what the pass records, and hold whatever its Config. It does not know programs or strategies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from castile.planner.axes import Operand
from castile.planner.bodies.symbols import Step
from castile.planner.bodies.trace import Recording, record
from castile.planner.bodies.vocabulary import Spec
from castile.planner.graph import Node
from castile.planner.op import PASSES, Tensor


class Handed(NamedTuple):
    """A gradient that is that of a result, by number, or the box of it that begins at `begin`."""

    result: int
    begin: tuple[int, ...]


def recorded(node: Node, tensors: Mapping[str, Tensor], which: str = "B") -> Recording:
    """A gradient pass of a node, recorded in one piece; its inputs begin with the gradients of results."""
    whole, asked = node.whole(), node.op.asks(which)
    operands = [Spec(whole.reads(n).shape, tensors[t].dtype) for n, t in enumerate(node.inputs)]
    results = tuple(Spec(tensors[t].shape, tensors[t].dtype) for t in node.outputs)
    context: dict[str, object] = {"at": whole} if "at" in asked else {}
    if "y" in asked:
        context["y"] = results
    pulled = results[: node.op.flows]
    given = [*(pulled if node.op.flows == 1 else [pulled]), *operands]
    return record(getattr(node.op, PASSES[which]), given, None, **context)


def handed_on(node: Node, tensors: Mapping[str, Tensor]) -> dict[int, Handed]:
    """The operands whose gradient is that of a result or a box of it, number for number, under every Config."""
    a, flows = node.alignment, node.op.flows
    cut = {axis for axis in a.axes if axis not in a.frozen and a.extents[axis] > 1}
    # No part of these gives a partial sum.
    borne = [j for j, r in enumerate(a.results[:flows]) if cut <= {*r.axes}]
    alike = {(i, j) for i, o in enumerate(a.operands) for j in borne if _are_alike(o, a.results[j])}
    if not alike or not node.op.has("B"):
        return {}
    recording = recorded(node, tensors)
    known = {recording.inputs[j]: Handed(j, (0,) * recording.inputs[j].ndim) for j in borne}
    for step in recording.steps:
        if step.kernel == "cut" and step.symbols[0] in known:
            known[step.outs[0]] = _piece(known[step.symbols[0]], step)
    made = zip([i for i, o in enumerate(a.operands) if not o.param], recording.outputs, strict=True)
    found = {i: known[out] for i, out in made if out in known and out.shape == tensors[node.inputs[i]].shape}
    return {i: one for i, one in found.items() if (i, one.result) in alike}


class HandedOn:
    """What nodes of a graph hand on, found once for those that record the same."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._of: dict[str, dict[int, Handed]] = {}
        self._alike: dict[object, dict[int, Handed]] = {}

    def of(self, node: Node) -> dict[int, Handed]:
        if node.name not in self._of:
            kind = type(node.op), node.op.recorded_settings, node.alignment
            if kind not in self._alike:
                self._alike[kind] = handed_on(node, self._tensors)
            self._of[node.name] = self._alike[kind]
        return self._of[node.name]


def _are_alike(operand: Operand, result: Operand) -> bool:
    """Whether both lie in memory alike, and their dims run over the same axes, but for one that may be shorter."""
    if operand.order != result.order or len(operand.dims) != len(result.dims):
        return False
    return sum(mine != theirs for mine, theirs in zip(operand.dims, result.dims, strict=True)) <= 1


def _piece(of: Handed, step: Step) -> Handed:
    """What a call cuts out of what is handed on."""
    params: dict[str, Any] = step.params
    dim, begin = params["dim"], of.begin
    return of._replace(begin=(*begin[:dim], begin[dim] + params["start"], *begin[dim + 1 :]))

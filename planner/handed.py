"""Gradients that a pass hands on as they came: those of the terms of a sum are the sum's own.

They are found in what the pass records, and hold whatever its Config. It does not know programs or strategies.
"""

from __future__ import annotations

from collections.abc import Mapping

from castile.planner.graph import Node
from castile.planner.op import PASSES, Op, Tensor
from castile.planner.trace import Recording, record
from castile.planner.vocabulary import Spec


def recorded(node: Node, tensors: Mapping[str, Tensor]) -> Recording:
    """The gradients of a node's operands, recorded in one piece; its inputs begin with the gradients of results."""
    whole, asked = node.whole(), node.op.asks("B")
    operands = [Spec(whole.reads(n).shape, tensors[t].dtype) for n, t in enumerate(node.inputs)]
    results = tuple(Spec(tensors[t].shape, tensors[t].dtype) for t in node.outputs)
    context: dict[str, object] = {"at": whole} if "at" in asked else {}
    if "y" in asked:
        context["y"] = results
    pulled = results[: node.op.flows]
    given = [*(pulled if node.op.flows == 1 else [pulled]), *operands]
    return record(getattr(node.op, PASSES["B"]), given, None, **context)


def handed_on(node: Node, tensors: Mapping[str, Tensor]) -> dict[int, int]:
    """The operands whose gradient is that of a result, number for number, under every Config: by operand the result."""
    a, flows = node.alignment, node.op.flows
    cut = {axis for axis in a.axes if axis not in a.frozen and a.extents[axis] > 1}
    # Both are parted alike, and no part gives a partial sum.
    borne = [r if cut <= {*r.axes} else None for r in a.results[:flows]]
    alike = {(i, j) for i, o in enumerate(a.operands) for j, r in enumerate(borne) if o == r}
    if not alike or not node.op.has("B") or type(node.op).reads is not Op.reads:
        return {}
    recording = recorded(node, tensors)
    made = zip([i for i, o in enumerate(a.operands) if not o.param], recording.outputs, strict=True)
    return {i: j for i, out in made for j in range(flows) if (i, j) in alike and out is recording.inputs[j]}

"""What the passes of a node take under a split, and what it keeps: priced when a walk first comes by.

The largest part stands for all of them. It does not know placements.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from castile.planner.cost import CostModel
from castile.planner.graph import Node
from castile.planner.lower import Lowering
from castile.planner.op import Part
from castile.planner.program import Program, Step
from castile.planner.template import PartTemplate, _cost_key
from castile.runtime.region import blocks
from castile.runtime.task import CostKey
from castile.runtime.timeline import PICOSECONDS

# What updates and clipping of a parameter are called behind its name.
OF_PARAMS = ("update", "square_sum", "clip")


def param_of(step: Step, program: Program) -> str:
    """The parameter that a step updates or clips, "" where it is none of these."""
    name, _, what = step.node.name.rpartition("/")
    params = {p.name for p in program.graph.params} if what in OF_PARAMS else ()
    return name if name in params else ""


class Works:
    """Seconds and bytes of nodes of one graph."""

    def __init__(self, lowering: Lowering, cost: CostModel, program: Program) -> None:
        self._lowering, self._cost, self._program = lowering, cost, program
        self._wholes: dict[int, PartTemplate] = {}

    def seconds(self, node: Node, step: Step, split: Mapping[str, int]) -> np.ndarray:
        """float64[T]: seconds of the largest part of a step that this node decides, by the type of processor."""
        if step.node is not node:
            split = self.of_param(node, step, split)
        key = self._key(step, split)
        kinds = range(len(self._lowering.machine.kinds))
        return np.array([self._cost.picoseconds([key], kind)[0] for kind in kinds]) / PICOSECONDS

    def of_param(self, node: Node, step: Step, split: Mapping[str, int]) -> dict[str, int]:
        """The split of a parameter's update that cuts the parameter as the node does."""
        index = node.inputs.index(param_of(step, self._program))
        mine, theirs = step.node.alignment, node.alignment.operands[index]
        along = zip(mine.operands[0].dims, theirs.dims, strict=True)
        cut = {own[0]: split.get(of[0], 1) for own, of in along if own and of}
        return {axis: degree for axis, degree in cut.items() if degree > 1 and axis not in mine.frozen}

    def nbytes(self, node: Node, steps: Sequence[Step], split: Mapping[str, int]) -> float:
        """What a part of a node keeps: its results till their gradients, and its parameters with what updates need."""
        part, total = _largest(node, split), 0.0
        for result, name in enumerate(node.outputs):
            total += prod(part.writes(result).shape) * _itemsize(self._dtype(name))
        for step in steps:
            param = param_of(step, self._program)
            if not param or not step.node.name.endswith("/update"):
                continue
            index = node.inputs.index(param)
            box, dtype = part.reads(index), self._dtype(node.inputs[index])
            like = sum(o.dims == step.node.alignment.operands[0].dims for o in step.node.alignment.operands)
            total += prod(box.shape) * _itemsize(dtype) * like
        return total

    def _dtype(self, tensor: str) -> str:
        return self._lowering.graph.tensors[tensor].dtype

    def _key(self, step: Step, split: Mapping[str, int]) -> CostKey:
        dtypes = self._program.dtypes.__getitem__
        if step.slot not in self._wholes:
            self._wholes[step.slot] = self._lowering.templates.get(step, {}, dtypes).parts[0]
        part = _largest(step.node, split)
        whole = self._wholes[step.slot]
        touched = [box is not None for box in (*whole.inputs, *whole.outputs)]
        rows = []
        for port in itertools.compress((*step.inputs, *step.outputs), touched):
            box = part.reads(port.index) if port.role in ("x", "dx") else part.writes(port.index)
            rows.append((box.shape, dtypes(port.region)))
        every = [dtypes(port.region) for port in (*step.inputs, *step.outputs)]
        return _cost_key(step, rows, step.node.op.flops(step.which, part), every)


def _itemsize(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _largest(node: Node, split: Mapping[str, int]) -> Part:
    a = node.alignment
    return Part(node.op, a, {axis: blocks(n, split.get(axis, 1))[0] for axis, n in a.extents.items()})

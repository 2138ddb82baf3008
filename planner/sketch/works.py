"""What the passes of a node take under a split, and what it keeps: priced when a walk first comes by.

The largest part stands for all of them. It does not know placements.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from castile.planner.cost import CostModel
from castile.planner.graph import Node
from castile.planner.lower import Lowering
from castile.planner.op import Part
from castile.planner.program import FETCHED, Port, Program, Step
from castile.planner.sketch.layouts import LayoutTable
from castile.planner.sketch.many import Cut, asked
from castile.planner.strategy import Config
from castile.planner.template import PartTemplate, _cost_key, bearing, priced
from castile.runtime.machine import Processor
from castile.runtime.task import CostKey
from castile.runtime.timeline import PICOSECONDS

# What casts, updates and clipping of a parameter are called behind its name.
OF_PARAMS = ("fetch", "update", "square_sum", "clip")


def param_of(step: Step, program: Program) -> str:
    """The parameter that a step casts, updates or clips, "" where it is none of these."""
    name, _, what = step.node.name.rpartition("/")
    return name if what in OF_PARAMS and name in program.params else ""


class Works:
    """Seconds and bytes of nodes of one graph.

    plan       of which first parts say what those of other plans touch: a search makes its templates anyway
    is_plain   whether all prices are rooflines of one kind of processor, of which many are told at once
    """

    def __init__(
        self,
        lowering: Lowering,
        cost: CostModel,
        program: Program,
        layouts: LayoutTable,
        plan: Mapping[str, Config],
    ) -> None:
        self._lowering, self._cost, self._program, self._layouts = lowering, cost, program, layouts
        self._plan = plan
        self._firsts: dict[int, PartTemplate] = {}
        # Where any kernel was measured, what was learned from it tells of all others.
        probe = cost.seconds(CostKey("", "", "float32", 1, 1))
        self.is_plain = len(lowering.machine.kinds) == 1 and probe.source == "roofline"

    def seconds(self, node: Node, steps: Sequence[Step], cut: Cut, count: int) -> list[np.ndarray]:
        """float64[count, T] for each step that a node decides: seconds of its largest part under each split, by the
        type of processor."""
        own, found = _Largest(node, cut, count, self._layouts), []
        for step in steps:
            of = own
            if step.node is not node:
                of = _Largest(step.node, self.of_param(node, step, cut), count, self._layouts)
            found.append(self._seconds(step, of, count))
        return found

    def _seconds(self, step: Step, of: _Largest, count: int) -> np.ndarray:
        dtypes = self._program.dtypes.__getitem__
        if step.slot not in self._firsts:
            name = step.node.name
            split = self._plan[name].split if name in self._plan else {}
            self._firsts[step.slot] = self._lowering.templates.get(step, split, dtypes).parts[0]
        first = self._firsts[step.slot]
        touched = [box is not None for box in (*first.inputs, *first.outputs)]
        ports = itertools.compress(zip((*step.inputs, *step.outputs), bearing(step), strict=True), touched)
        rows = [(of.shape(port), dtypes(port.region), own) for port, own in ports]
        every = [dtypes(port.region) for port in (*step.inputs, *step.outputs)]
        kinds = self._lowering.machine.kinds
        if self.is_plain:
            nbytes = sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype, _ in rows)
            seconds = _roofline(kinds[0], priced(step, every), np.rint(of.flops(step.which)), nbytes)
            return np.broadcast_to(seconds, count)[:, None]
        key = _cost_key(step, rows, of.flops(step.which), every)
        return np.array([self._cost.picoseconds([key], kind) for kind in range(len(kinds))]).T / PICOSECONDS

    def of_param(self, node: Node, step: Step, cut: Cut) -> Cut:
        """The split of a parameter's update that cuts the parameter as the node does."""
        index = node.inputs.index(param_of(step, self._program))
        mine, theirs = step.node.alignment, node.alignment.operands[index]
        along = zip(mine.operands[0].dims, theirs.dims, strict=True)
        return {own[0]: cut.get(of[0], 1) for own, of in along if own and of and own[0] not in mine.frozen}

    def many_nbytes(self, node: Node, steps: Sequence[Step], splits: Sequence[Mapping[str, int]], cut: Cut) -> Any:
        """float64[2, splits]: what `nbytes` says of each."""
        found = asked(lambda: self.nbytes(node, steps, cut))
        if found is None:
            return np.array([self.nbytes(node, steps, split) for split in splits]).T
        return np.stack([np.broadcast_to(nbytes, len(splits)) for nbytes in found])

    def nbytes(self, node: Node, steps: Sequence[Step], split: Mapping[str, int]) -> tuple[float, float]:
        """What a part of a node keeps: its results till their gradients, and its parameters with what updates need.

        The second number holds where updates are in pieces: of what they need, those who hold a parameter alike have
        a share each.
        """
        part, tensors = _largest(node, split), self._lowering.graph.tensors
        total = in_pieces = sum(
            prod(part.writes(result).shape) * np.dtype(tensors[name].dtype).itemsize
            for result, name in enumerate(node.outputs)
        )
        for step in steps:
            param = param_of(step, self._program)
            if not param or not step.node.name.endswith("/update"):
                continue
            index = node.inputs.index(param)
            size, dtypes = prod(part.reads(index).shape), self._program.dtypes
            nbytes = size * np.dtype(dtypes[param]).itemsize
            cast = size * np.dtype(dtypes[param + FETCHED]).itemsize if param + FETCHED in dtypes else 0
            borne = node.alignment.operands[index].axes
            alike = prod(degree for axis, degree in split.items() if axis not in borne)
            like = sum(o.dims == step.node.alignment.operands[0].dims for o in step.node.alignment.operands)
            # Arrays where many splits are asked about: what both numbers begin with is not to be changed.
            total = total + nbytes * like + cast
            in_pieces = in_pieces + nbytes * np.minimum(like, 1 + like / alike) + cast
        return total, in_pieces


class _Largest:
    """The largest part of a node under each of many splits, or under one; what its passes have in common."""

    def __init__(self, node: Node, cut: Cut, count: int, layouts: LayoutTable) -> None:
        self._node, self._cut, self._count, self._layouts = node, cut, count, layouts
        self._part = _largest(node, cut)
        self._shapes: dict[tuple[bool, int], tuple[Any, ...]] = {}

    def shape(self, port: Port) -> tuple[Any, ...]:
        """The lengths of what it touches of a port, or an array of each."""
        key = (port.role in ("x", "dx"), port.index)
        if key not in self._shapes:
            box = asked(lambda: self._part.reads(key[1]) if key[0] else self._part.writes(key[1]))
            self._shapes[key] = self._by_axis(key[1]) if box is None else box.shape
        return self._shapes[key]

    def flops(self, which: str) -> Any:
        """The operations of a pass."""
        op, ranges = self._node.op, self._part.ranges
        found = asked(lambda: op.flops(which, self._part))
        if found is not None:
            return found
        ends = np.broadcast_arrays(np.empty(self._count), *(hi for _, hi in ranges.values()))[1:]
        parts = (dict(zip(ranges, zip(itertools.repeat(0), row))) for row in np.array(ends).T.tolist())
        return np.array([op.flops(which, Part(op, self._node.alignment, of)) for of in parts])

    def _by_axis(self, index: int) -> tuple[Any, ...]:
        """The shape of an operand, where each axis cuts it by itself."""
        whole = self._node.whole().reads(index)
        shape: list[Any] = list(whole.shape)
        for axis, degree in self._cut.items():
            degrees = tuple(sorted({*degree.tolist()} - {1}))
            firsts = np.cumsum([0, *degrees[:-1]])
            seen = self._layouts.seen(self._node, True, index, axis, degrees, whole) if degrees else {}
            for d, (lo, hi) in seen.items():
                lengths = np.full(degrees[-1] + 1, shape[d])
                lengths[list(degrees)] = (hi - lo)[firsts]
                shape[d] = lengths[degree]
        return tuple(shape)


def _largest(node: Node, cut: Cut) -> Part:
    """The first part of a node under a split, or under each of many, which is as large as any."""
    a = node.alignment
    return Part(node.op, a, {axis: (0, -(-n // cut.get(axis, 1))) for axis, n in a.extents.items()})


def _roofline(processor: Processor, dtype: str, flops: Any, nbytes: Any) -> np.ndarray:
    """Seconds, in whole picoseconds, of kernels of so many flops and bytes each, of which nothing more is known."""
    work = np.maximum(flops / processor.flops_rate(dtype), nbytes / processor.bytes_per_second)
    return np.maximum(1, np.rint((processor.task_overhead_seconds + work) * PICOSECONDS)) / PICOSECONDS

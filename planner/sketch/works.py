"""What the passes of a node take under a split, and what it keeps: priced when a walk first comes by.

The largest part stands for all of them. It does not know placements.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from castile.planner.cost import CostModel
from castile.planner.graph import Node
from castile.planner.lower import Lowering
from castile.planner.op import Part
from castile.planner.program import FETCHED, GRADIENT, Program, Step
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
        plan: Mapping[str, Config],
    ) -> None:
        self._lowering, self._cost, self._program = lowering, cost, program
        self._plan = plan
        # Where any kernel was measured, what was learned from it tells of all others.
        probe = cost.seconds(CostKey("", "", "float32", 1, 1))
        self.is_plain = len(lowering.machine.kinds) == 1 and probe.source == "roofline"

    @cached_property
    def keeps(self) -> dict[str, tuple[tuple[bool, int], ...]]:
        """By node which of its operands (True) and results lie on its parts until gradients come.

        What gradient passes touch, each tensor where the first node lies that does so; all else is let go before.
        """
        dtypes, tensors = self._program.dtypes.__getitem__, self._lowering.graph.tensors
        touched: dict[int, list[int]] = {}
        keepers: dict[str, tuple[str, bool, int]] = {}
        for step in self._program.steps:
            if step.which == "F":
                continue
            kind = self._lowering.templates.kind(step, dtypes)
            if kind not in touched:
                ports = enumerate(zip(step.inputs, self._first(step).inputs, strict=True))
                touched[kind] = [n for n, (port, box) in ports if box is not None and port.role in ("x", "y")]
            for n in touched[kind]:
                # Passes of earlier nodes come later, and have the last word.
                is_operand, index = step.inputs[n].role == "x", step.inputs[n].index
                tensor = (step.node.inputs if is_operand else step.node.outputs)[index]
                keepers[tensor] = step.node.name, is_operand, index
        found: dict[str, list[tuple[bool, int]]] = {}
        for tensor, (name, is_operand, index) in keepers.items():
            if not tensors[tensor].param:
                found.setdefault(name, []).append((is_operand, index))
        return {name: tuple(sorted(ports)) for name, ports in found.items()}

    @cached_property
    def _reader(self) -> dict[str, str]:
        """By what the host gives the first node that reads it."""
        graph = self._lowering.graph
        readers = {name: node.name for node in reversed(graph.nodes.values()) for name in node.inputs}
        return {name: readers[name] for name in graph.inputs if name in readers}

    def seconds(self, own: Largest, steps: Sequence[Step]) -> list[np.ndarray]:
        """float64[count, T] for each step that a node decides: seconds of its largest part under each split, by the
        type of processor."""
        found = []
        for step in steps:
            of = own if step.node.name == own.node.name else own.like(step.node, self.of_param(own.node, step, own.cut))
            found.append(self._seconds(step, of))
        return found

    def _seconds(self, step: Step, of: Largest) -> np.ndarray:
        dtypes = self._program.dtypes.__getitem__
        first = self._first(step)
        touched = [box is not None for box in (*first.inputs, *first.outputs)]
        ports = itertools.compress(zip((*step.inputs, *step.outputs), bearing(step), strict=True), touched)
        rows = [(port, of.shape(port.of_operand, port.index), dtypes(port.region), own) for port, own in ports]
        every = [dtypes(port.region) for port in (*step.inputs, *step.outputs)]
        kinds = self._lowering.machine.kinds
        if self.is_plain:
            nbytes = sum(prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype, _ in rows)
            seconds = _roofline(kinds[0], priced(step, every), np.rint(of.flops(step.which)), nbytes)
            return np.broadcast_to(seconds, of.count)[:, None]
        key = _cost_key(step, rows, of.flops(step.which), every)
        return np.array([self._cost.picoseconds([key], kind) for kind in range(len(kinds))]).T / PICOSECONDS

    def _first(self, step: Step) -> PartTemplate:
        name = step.node.name
        split = self._plan[name].split if name in self._plan else {}
        return self._lowering.templates.get(step, split, self._program.dtypes.__getitem__).parts[0]

    def of_param(self, node: Node, step: Step, cut: Cut) -> Cut:
        """The split of a parameter's update that cuts the parameter as the node does."""
        index = node.inputs.index(param_of(step, self._program))
        mine, theirs = step.node.alignment, node.alignment.operands[index]
        along = zip(mine.operands[0].dims, theirs.dims, strict=True)
        return {own[0]: cut.get(of[0], 1) for own, of in along if own and of and own[0] not in mine.frozen}

    def nbytes(self, of: Largest, steps: Sequence[Step]) -> np.ndarray:
        """float64[2, count]: what a part of a node keeps through a step: what is its to keep for gradient passes, and
        its parameters with what updates need.

        The second number holds where updates are in pieces: of what they need, those who hold a parameter alike have
        a share each; gradients that microbatches add to are whole until the last has added its own. What the host gives
        to all other microbatches lies there besides.
        """
        count = max((step.micro.count for step in steps), default=1)
        node, dtypes, tensors = of.node, self._program.dtypes, self._lowering.graph.tensors
        lying = [
            (1, of.shape(*port), (node.inputs if port[0] else node.outputs)[port[1]])
            for port in self.keeps.get(node.name, ())
        ]
        if count > 1:
            given = [n for n, name in enumerate(node.inputs) if self._reader.get(name) == node.name]
            lying += [(count - 1, of.shape(True, n), node.inputs[n]) for n in given]
        total = in_pieces = sum(
            times * prod(shape) * np.dtype(tensors[name].dtype).itemsize for times, shape, name in lying
        )
        for step in steps:
            param = param_of(step, self._program)
            if not param or not step.node.name.endswith("/update"):
                continue
            index = node.inputs.index(param)
            size = prod(of.shape(True, index))
            nbytes = size * np.dtype(dtypes[param]).itemsize
            cast = size * np.dtype(dtypes[param + FETCHED]).itemsize if param + FETCHED in dtypes else 0
            borne = node.alignment.operands[index].axes
            alike = prod(degree for axis, degree in of.cut.items() if axis not in borne)
            like = sum(o.dims == step.node.alignment.operands[0].dims for o in step.node.alignment.operands)
            # Arrays where many splits are asked about: what both numbers begin with is not to be changed.
            total = total + nbytes * like + cast
            in_pieces = in_pieces + nbytes * np.minimum(like, 1 + like / alike) + cast
            if count > 1:
                in_pieces = in_pieces + size * np.dtype(dtypes[param + GRADIENT]).itemsize * (1 - 1 / alike)
        return np.stack([np.broadcast_to(number, of.count) for number in (total, in_pieces)])


class Largest:
    """The largest part of a node under each of many splits, or under one; what its passes have in common.

    count   how many splits
    """

    def __init__(self, node: Node, cut: Cut, count: int, layouts: LayoutTable) -> None:
        self.node, self.cut, self.count, self._layouts = node, cut, count, layouts
        self._part = _largest(node, cut)
        self._shapes: dict[tuple[bool, int], tuple[Any, ...]] = {}

    def like(self, node: Node, cut: Cut) -> Largest:
        """As many of another node."""
        return Largest(node, cut, self.count, self._layouts)

    def shape(self, is_operand: bool, index: int) -> tuple[Any, ...]:
        """The lengths of what it touches of an operand or result, or an array of each."""
        key = is_operand, index
        if key not in self._shapes:
            box = asked(lambda: self._part.reads(index) if is_operand else self._part.writes(index))
            self._shapes[key] = self._by_axis(index) if box is None else box.shape
        return self._shapes[key]

    def flops(self, which: str) -> Any:
        """The operations of a pass."""
        op, ranges = self.node.op, self._part.ranges
        found = asked(lambda: op.flops(which, self._part))
        if found is not None:
            return found
        ends = np.broadcast_arrays(np.empty(self.count), *(hi for _, hi in ranges.values()))[1:]
        parts = (dict(zip(ranges, zip(itertools.repeat(0), row))) for row in np.array(ends).T.tolist())
        return np.array([op.flops(which, Part(op, self.node.alignment, of)) for of in parts])

    def _by_axis(self, index: int) -> tuple[Any, ...]:
        """The shape of an operand, where each axis cuts it by itself."""
        whole = self.node.whole().reads(index)
        shape: list[Any] = list(whole.shape)
        for axis, degree in self.cut.items():
            degrees = tuple(sorted({*degree.tolist()} - {1}))
            firsts = np.cumsum([0, *degrees[:-1]])
            seen = self._layouts.seen(self.node, True, index, axis, degrees, whole) if degrees else {}
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

"""Templates: what every part of one pass of one operator touches and computes, for local shapes and a split.

One template serves all nodes of the same operator, shapes and split, whatever their names and processors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import prod
from typing import NamedTuple

import numpy as np

from castile.planner.axes import Operand
from castile.planner.graph import Node
from castile.planner.op import Op, Part
from castile.planner.program import Micro, Port, Step
from castile.planner.recordings import place_counts, recorded, wanted
from castile.planner.strategy import parts
from castile.planner.trace import Recording
from castile.planner.vocabulary import Spec
from castile.planner.watched import Shared
from castile.runtime.region import Box, moved
from castile.runtime.task import Body, CostKey

Bodies = dict[tuple[bool, ...], Body]
Cuts = tuple[tuple[str, int], ...]
Frames = tuple[tuple[int, tuple[int, ...]], ...]  # input ports, and the shapes of arrays that they read in strides
InStrides = list[tuple[int, int, tuple[int, ...]]]  # tasks, input ports, and the same


@dataclass(frozen=True, eq=False)
class Work:
    """What parts that compute alike have in common: their cost, what they record, and which ports they touch.

    bodies   those made of the recording, which works that share it have in common
    dtypes   of what is made, in the regions where it goes
    turns    of each port that is touched where in its region each dim of it is, () where as they come
    """

    key: CostKey
    recording: Recording
    bodies: Bodies
    touched: tuple[bool, ...]
    dtypes: tuple[str, ...]
    turns: tuple[tuple[int, ...], ...]
    strided: dict[Frames, CostKey] = field(default_factory=dict)


class PartTemplate(NamedTuple):
    """One part: the box of each port (None: not touched), inputs then outputs, and its work."""

    inputs: tuple[Box | None, ...]
    outputs: tuple[Box | None, ...]
    work: Work

    @property
    def key(self) -> CostKey:
        return self.work.key

    def strided_key(self, frames: Frames) -> CostKey:
        """The cost where input ports are read in strides out of arrays of these shapes."""
        known = self.work.strided
        if frames not in known:
            touched = [n for n, box in enumerate(self.inputs) if box is not None]
            known[frames] = self.key.strided({touched.index(port): shape for port, shape in frames})
        return known[frames]

    def body(self, adds: tuple[bool, ...]) -> Body:
        """The kernel calls, where output port j is added to where adds[j]."""
        bodies = self.work.bodies
        made = tuple([a for a, box in zip(adds, self.outputs, strict=True) if box is not None])
        if made not in bodies:
            bodies[made] = self.work.recording.body(made, self.work.dtypes, self.work.turns)
        return bodies[made]


@dataclass(frozen=True, eq=False)
class StepTemplate:
    """All parts of a pass, row-major in the order of the axis line."""

    parts: tuple[PartTemplate, ...]

    def box(self, part: int, port: int, output: bool) -> Box | None:
        return (self.parts[part].outputs if output else self.parts[part].inputs)[port]

    def boxes(self, port: int, output: bool) -> tuple[Box | None, ...]:
        """The box of a port by part."""
        if (port, output) not in self._boxes:
            each = [p.outputs if output else p.inputs for p in self.parts]
            self._boxes[port, output] = tuple([ports[port] for ports in each])
        return self._boxes[port, output]

    @cached_property
    def _boxes(self) -> dict[tuple[int, bool], tuple[Box | None, ...]]:
        return {}

    def private_adding(self, adds: tuple[bool, ...]) -> np.ndarray:
        """The private bytes of each part where output port j is added to if adds[j]."""
        if adds not in self._private:
            found = {p.work: p.body(adds).private_bytes for p in {p.work: p for p in self.parts}.values()}
            self._private[adds] = np.array([found[p.work] for p in self.parts])
        return self._private[adds]

    @cached_property
    def _private(self) -> dict[tuple[bool, ...], np.ndarray]:
        return {}

    def strided(self, replicas: int, rows: Sequence[InStrides]) -> tuple[np.ndarray, list[CostKey]]:
        """The tasks, when each part has that many replicas, that read arrays in strides, and cost keys that say so."""
        # Flows have the rows of their templates, so those that are alike are one object, which is kept.
        key = (replicas, *map(id, rows))
        if key not in self._strided:
            frames: dict[int, dict[int, tuple[int, ...]]] = {}
            for task, port, frame in chain.from_iterable(rows):
                frames.setdefault(task, {})[port] = frame
            keys = [self.parts[task // replicas].strided_key(tuple(sorted(of.items()))) for task, of in frames.items()]
            self._strided[key] = rows, (np.array(list(frames), np.int64), keys)
        return self._strided[key][1]

    @cached_property
    def _strided(self) -> dict[tuple[int, ...], tuple[object, tuple[np.ndarray, list[CostKey]]]]:
        return {}

    def touching(self, port: int, output: bool, replicas: int) -> np.ndarray:
        """The tasks that touch a port when each part has that many replicas, in order."""
        key = (port, output, replicas)
        if key not in self._touching:
            boxes = self.boxes(port, output)
            every = np.arange(len(boxes) * replicas)
            if None in boxes:
                every = every[np.repeat([box is not None for box in boxes], replicas)]
            self._touching[key] = every
        return self._touching[key]

    @cached_property
    def _touching(self) -> dict[tuple[int, bool, int], np.ndarray]:
        return {}

    def of_tasks(self, replicas: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the tasks when each part has that many replicas the numbers of their cost keys, and their private bytes
        where nothing is added up.
        """
        if replicas not in self._of_tasks:
            alone = self.private_adding((False,) * len(self.parts[0].outputs))
            self._of_tasks[replicas] = np.repeat(self.keys[1], replicas), np.repeat(alone, replicas)
        return self._of_tasks[replicas]

    @cached_property
    def _of_tasks(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        return {}

    @cached_property
    def keys(self) -> tuple[tuple[CostKey, ...], np.ndarray]:
        """The distinct cost keys and the number of each part's."""
        distinct: dict[CostKey, int] = {}
        numbers = {work: distinct.setdefault(work.key, len(distinct)) for work in {p.work: None for p in self.parts}}
        return tuple(distinct), np.array([numbers[p.work] for p in self.parts], dtype=np.int64)


class Templates:
    """The templates made so far; a search shares one of these over all its proposals."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, Cuts], StepTemplate] = {}
        self._pieces: dict[object, Pieces] = {}
        self._works: dict[object, _Works] = {}
        self._numbers: dict[object, int] = {}
        # by identity, each with what keeps its identity its own
        self._nodes: dict[int, tuple[Node, int]] = {}
        self._steps: dict[int, tuple[Step, int, Micro]] = {}

    def get(self, step: Step, split: dict[str, int], dtypes: Callable[[str], str]) -> StepTemplate:
        """The template of a step under a split; dtypes(region) names what a region's elements are."""
        cuts = tuple(sorted([(axis, d) for axis, d in split.items() if d > 1]))
        key = (self.kind(step, dtypes), cuts)
        if key not in self._made:
            micro = self._steps[id(step)][2]
            pieces = (self.node_kind(step.node), step.axis, micro, cuts)
            if pieces not in self._pieces:
                self._pieces[pieces] = Pieces(step.node, split, step.axis, micro)
            self._made[key] = StepTemplate(self._works_of(step, micro, dtypes).parts(step, self._pieces[pieces]))
        return self._made[key]

    def _works_of(self, step: Step, micro: Micro, dtypes: Callable[[str], str]) -> _Works:
        """What parts of steps that record the same have in common, wherever in their regions these lie."""
        op, a = step.node.op, step.node.alignment
        ports = tuple([(p.role, p.index, dtypes(p.region)) for p in (*step.inputs, *step.outputs)])
        node = type(op), op.recorded_settings, tuple(a.extents.items()), a.operands, a.results
        key = (*node, step.which, step.axis, micro, ports)
        if key not in self._works:
            self._works[key] = _Works(step, dtypes)
        return self._works[key]

    def kind(self, step: Step, dtypes: Callable[[str], str]) -> int:
        """The same number for steps that have the same template under every split."""
        if id(step) not in self._steps:
            # where a body does not ask which piece it is, all microbatches are alike
            micro = step.micro if "at" in step.node.op.asks(step.which) else Micro(0, step.micro.count)
            ports = tuple([(p.role, p.index, dtypes(p.region), p.cut, p.begin) for p in (*step.inputs, *step.outputs)])
            key = (self.node_kind(step.node), step.which, step.axis, micro, ports)
            self._steps[id(step)] = step, self._numbers.setdefault(key, len(self._numbers)), micro
        return self._steps[id(step)][1]

    def node_kind(self, node: Node) -> int:
        """The same number for nodes of the same operator and shapes."""
        if id(node) not in self._nodes:
            a = node.alignment
            key = (node.op, tuple(a.extents.items()), a.operands, a.results)
            self._nodes[id(node)] = node, self._numbers.setdefault(key, len(self._numbers))
        return self._nodes[id(node)][1]


class Pieces:
    """The parts of a node under a split, in one microbatch, and what they touch: alike for all its passes."""

    def __init__(self, node: Node, split: Mapping[str, int], axis: str, micro: Micro) -> None:
        self.node, self.axis, self.count = node, axis, micro.count
        self.parts = parts(node, split, axis, (micro.number, micro.count))
        self.lengths = [tuple([hi - lo for lo, hi in part.ranges.values()]) for part in self.parts]
        self._boxes: dict[tuple[bool, int], tuple[list[Box], list[tuple[int, ...]]]] = {}

    def boxes(self, port: Port) -> tuple[list[Box], list[tuple[int, ...]]]:
        """What each part touches of a port's region, and its shape; one that holds one microbatch begins where that
        begins, and of one that holds other things the port tells where it does.
        """
        key = (port.of_operand, port.index)
        if key not in self._boxes:
            boxes = self._find(*key)
            self._boxes[key] = boxes, [box.shape for box in boxes]
        boxes, shapes = self._boxes[key]
        if port.cut is not None:
            boxes = [self._moved(*each, port.cut, key) for each in zip(self.parts, boxes)]
        if port.begin:
            boxes = [moved(box, port.begin) for box in boxes]
        return boxes, shapes

    def _find(self, is_operand: bool, index: int) -> list[Box]:
        node = self.node
        if is_operand and not node.op.follows(index):
            found: Shared[Box] = Shared(lambda part: part.reads(index))
            return [found.of(part) for part in self.parts]
        operand = (node.alignment.operands if is_operand else node.alignment.results)[index]
        # Many parts have the same ranges of the axes that it bears.
        axes = [dim[0] for dim in operand.dims if dim]
        rows = [tuple([part.ranges[axis] for axis in axes]) for part in self.parts]
        known = {row: part.shard(operand) for row, part in dict(zip(rows, self.parts)).items()}
        return [known[row] for row in rows]

    def _moved(self, part: Part, box: Box, cut: int, key: tuple[bool, int]) -> Box:
        a = part.alignment
        length = a.shape((a.operands if key[0] else a.results)[key[1]])[cut] // self.count
        first = part.ranges[self.axis][0] // (a.extents[self.axis] // self.count) * length
        lo, hi = list(box.lo), list(box.hi)
        lo[cut] -= first
        hi[cut] -= first
        return Box(tuple(lo), tuple(hi))


class _Works:
    """The works of steps that record the same, under every split: what parts have in common is found once."""

    def __init__(self, step: Step, dtypes: Callable[[str], str]) -> None:
        self.step = step
        self.dtypes = [dtypes(port.region) for port in (*step.inputs, *step.outputs)]
        self.bears = bearing(step)
        op = step.node.op
        self._place_counts = place_counts(step) or type(op).flops is not Op.flops
        self._recordings: dict[tuple[tuple[int, ...], ...], Shared[tuple[Recording, Bodies]]] = {}
        self._alike: dict[object, Work] = {}
        self._works: dict[object, Work] = {}

    def parts(self, step: Step, pieces: Pieces) -> tuple[PartTemplate, ...]:
        """Those of one of these steps under a split."""
        boxes, shapes = zip(*[pieces.boxes(port) for port in (*step.inputs, *step.outputs)], strict=True)
        works = list(map(self._work, pieces.parts, zip(*shapes, strict=True), pieces.lengths))
        laid = [[one.laid(box) for box in each] if one.order else each for one, each in zip(self.bears, boxes)]
        num_inputs, rows = len(step.inputs), zip(*laid, strict=True)
        found = []
        for row, work in zip(rows, works, strict=True):
            if not all(work.touched):
                row = tuple([box if touched else None for box, touched in zip(row, work.touched)])
            found.append(PartTemplate(row[:num_inputs], row[num_inputs:], work))
        return tuple(found)

    def _work(self, part: Part, shapes: tuple[tuple[int, ...], ...], lengths: tuple[int, ...]) -> Work:
        """What a part has in common with others: of its shapes, unless its place counts too."""
        like = (shapes, lengths)
        if like in self._alike:
            return self._alike[like]
        flops, given = self.step.node.op.flops(self.step.which, part), shapes[: len(self.step.inputs)]
        if given not in self._recordings:
            specs = tuple(map(Spec, given, self.dtypes))
            self._recordings[given] = Shared(lambda like: (recorded(self.step, like, specs), {}))
        recording, bodies = self._recordings[given].of(part)
        known = (shapes, flops, id(bodies))
        if known not in self._works:
            self._works[known] = self._common(recording, bodies, shapes, flops)
        if not self._place_counts:
            self._alike[like] = self._works[known]
        return self._works[known]

    def _common(self, recording: Recording, bodies: Bodies, shapes: tuple[tuple[int, ...], ...], flops: float) -> Work:
        step, num_inputs = self.step, len(self.step.inputs)
        ports, made = (*step.inputs, *step.outputs), wanted(step, recording)
        for shape, spec, port in zip(shapes[num_inputs:], made, step.outputs, strict=True):
            assert spec is None or spec.shape == shape, f"{step.name}: {port} is {spec}, its box has shape {shape}"
        touched = (*(i in recording.reads for i in range(num_inputs)), *(spec is not None for spec in made))
        every = zip(ports, shapes, self.dtypes, self.bears, strict=True)
        rows = [row for row, t in zip(every, touched, strict=True) if t]
        dtypes = tuple(d for d, t in zip(self.dtypes[num_inputs:], touched[num_inputs:], strict=True) if t)
        turns = tuple(one.back for *_, one in rows)
        return Work(_cost_key(step, rows, flops, self.dtypes), recording, bodies, touched, dtypes, turns)


def bearing(step: Step) -> list[Operand]:
    """What each port of a step is to its node: an operand or a result, or the gradient of one."""
    a, ports = step.node.alignment, (*step.inputs, *step.outputs)
    return [(a.operands if port.of_operand else a.results)[port.index] for port in ports]


def _cost_key(
    step: Step, arrays: Sequence[tuple[Port, tuple[int, ...], str, Operand]], flops: float, dtypes: Sequence[str]
) -> CostKey:
    """The cost of a part that touches arrays at these ports, of these shapes and dtypes, laid so; dtypes: those of all
    ports. As `+3x4` what a gradient is added to, which else could be taken for one more that is given.
    """
    op = step.node.op
    shapes = ";".join("+" * (p.role == "onto") + "x".join(map(str, shape)) + _laid(one) for p, shape, _, one in arrays)
    settings = ",".join(f"{name}={value}" for name, value in op.cost_settings)
    nbytes = sum(prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype, _ in arrays)
    return CostKey(f"{op.name}.{step.which}", f"{shapes}|{settings}", priced(step, dtypes), round(flops), nbytes)


def _laid(one: Operand) -> str:
    """As in `@0231`: which dims of an array lie outside which others, where that is not as they come."""
    return "@" + "".join(map(str, one.order)) if one.order else ""


def priced(step: Step, dtypes: Sequence[str]) -> str:
    """The dtype that a pass computes with: parameters' gradients may be summed in a wider one."""
    return dtypes[0 if step.which == "W" else len(step.inputs)]

"""Templates: what every part of one pass of one operator touches and computes, for local shapes and a split.

One template serves all nodes of the same operator, shapes and split, whatever their names and processors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Generic, TypeVar

import numpy as np

from castile.planner.graph import Node
from castile.planner.op import PASSES, Op, Part
from castile.planner.program import Micro, Port, Step
from castile.planner.strategy import parts
from castile.planner.trace import Recording, record
from castile.planner.vocabulary import Spec
from castile.runtime.region import Box
from castile.runtime.task import Body, CostKey

Bodies = dict[tuple[bool, ...], Body]


@dataclass(frozen=True, eq=False)
class PartTemplate:
    """One part: the box of each port (None: not touched), inputs then outputs, its cost and its recorded body.

    bodies   those made of the recording, which parts that share it have in common
    """

    inputs: tuple[Box | None, ...]
    outputs: tuple[Box | None, ...]
    key: CostKey
    recording: Recording
    bodies: Bodies
    strided: dict[tuple[tuple[int, tuple[int, ...]], ...], CostKey] = field(default_factory=dict)

    def strided_key(self, frames: tuple[tuple[int, tuple[int, ...]], ...]) -> CostKey:
        """The cost where input ports are read in strides out of arrays of these shapes: (port, shape) each."""
        if frames not in self.strided:
            touched = [n for n, box in enumerate(self.inputs) if box is not None]
            self.strided[frames] = self.key.strided({touched.index(port): shape for port, shape in frames})
        return self.strided[frames]

    def body(self, adds: tuple[bool, ...]) -> Body:
        """The kernel calls, where output port j is added to where adds[j]."""
        made = tuple(a for a, box in zip(adds, self.outputs, strict=True) if box is not None)
        if made not in self.bodies:
            self.bodies[made] = self.recording.body(made)
        return self.bodies[made]


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

    @cached_property
    def private(self) -> np.ndarray:
        """The private bytes of each part where nothing is added up."""
        alone = (False,) * len(self.parts[0].outputs)
        made = {id(p.bodies): p.body(alone).private_bytes for p in {id(p.bodies): p for p in self.parts}.values()}
        return np.array([made[id(p.bodies)] for p in self.parts])

    def touching(self, port: int, output: bool, replicas: int) -> np.ndarray:
        """The tasks that touch a port when each part has that many replicas, in order."""
        key = (port, output, replicas)
        if key not in self._touching:
            touched = [box is not None for box in self.boxes(port, output)]
            self._touching[key] = np.flatnonzero(np.repeat(touched, replicas))
        return self._touching[key]

    @cached_property
    def _touching(self) -> dict[tuple[int, bool, int], np.ndarray]:
        return {}

    @cached_property
    def keys(self) -> tuple[tuple[CostKey, ...], np.ndarray]:
        """The distinct cost keys and the number of each part's."""
        distinct = {key: n for n, key in enumerate(dict.fromkeys(p.key for p in self.parts))}
        return tuple(distinct), np.array([distinct[p.key] for p in self.parts], dtype=np.int64)


class Templates:
    """The templates made so far; a search shares one of these over all its proposals."""

    def __init__(self) -> None:
        self._made: dict[object, StepTemplate] = {}
        self._pieces: dict[object, Pieces] = {}

    def get(self, step: Step, split: dict[str, int], dtypes: Callable[[str], str]) -> StepTemplate:
        """The template of a step under a split; dtypes(region) names what a region's elements are."""
        a = step.node.alignment
        ports = tuple((p.role, p.index, dtypes(p.region)) for p in (*step.inputs, *step.outputs))
        cuts = tuple(sorted((axis, d) for axis, d in split.items() if d > 1))
        # where a body does not ask which piece it is, all microbatches are alike
        micro = step.micro if "at" in step.node.op.asks(step.which) else Micro(0, step.micro.count)
        node = (step.node.op, tuple(a.extents.items()), a.operands, a.results, step.axis, cuts)
        key = (node, step.which, micro, tuple(p.cut for p in (*step.inputs, *step.outputs)), ports)
        if key not in self._made:
            if (node, micro) not in self._pieces:
                self._pieces[node, micro] = Pieces(step.node, split, step.axis, micro)
            self._made[key] = StepTemplate(_Draft(step, self._pieces[node, micro], dtypes).parts())
        return self._made[key]


Result = TypeVar("Result")


class Watched(Mapping[str, tuple[int, int]]):
    """The ranges of a part, and which of them were looked at."""

    def __init__(self, ranges: Mapping[str, tuple[int, int]]) -> None:
        self.ranges, self.seen = ranges, dict[str, tuple[int, int]]()

    def __getitem__(self, axis: str) -> tuple[int, int]:
        found = self.seen[axis] = self.ranges[axis]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)


class Shared(Generic[Result]):
    """What follows from a part: the same for parts that are alike in the ranges at which one looks to find it."""

    def __init__(self, find: Callable[[Part], Result]) -> None:
        self._find = find
        self._known: dict[tuple[str, ...], dict[tuple[tuple[int, int], ...], Result]] = {}

    def of(self, part: Part) -> Result:
        for axes, known in self._known.items():
            ranges = tuple([part.ranges[axis] for axis in axes])
            if ranges in known:
                return known[ranges]
        watched = Watched(part.ranges)
        result = self._find(Part(part.op, part.alignment, watched))
        self._known.setdefault(tuple(watched.seen), {})[tuple(watched.seen.values())] = result
        return result


class Pieces:
    """The parts of a node under a split, in one microbatch, and what they touch: alike for all its passes."""

    def __init__(self, node: Node, split: Mapping[str, int], axis: str, micro: Micro) -> None:
        self.axis, self.count = axis, micro.count
        self.parts = parts(node, split, axis, (micro.number, micro.count))
        self._boxes: dict[tuple[bool, int], list[Box]] = {}

    def boxes(self, port: Port) -> list[Box]:
        """What each part touches of a port's region; one that holds one microbatch begins where that begins."""
        key = (port.role in ("x", "dx"), port.index)
        if key not in self._boxes:
            found: Shared[Box] = Shared(lambda part: part.reads(key[1]) if key[0] else part.writes(key[1]))
            self._boxes[key] = [found.of(part) for part in self.parts]
        boxes = self._boxes[key]
        return boxes if port.cut is None else [self._moved(*each, port.cut, key) for each in zip(self.parts, boxes)]

    def _moved(self, part: Part, box: Box, cut: int, key: tuple[bool, int]) -> Box:
        a = part.alignment
        length = a.shape((a.operands if key[0] else a.results)[key[1]])[cut] // self.count
        first = part.ranges[self.axis][0] // (a.extents[self.axis] // self.count) * length
        lo, hi = list(box.lo), list(box.hi)
        lo[cut] -= first
        hi[cut] -= first
        return Box(tuple(lo), tuple(hi))


class _Draft:
    """The parts of a step's template; what parts have in common is found once."""

    def __init__(self, step: Step, pieces: Pieces, dtypes: Callable[[str], str]) -> None:
        self.step, self.pieces = step, pieces
        self.ports = (*step.inputs, *step.outputs)
        self.dtypes = [dtypes(port.region) for port in self.ports]
        self._recordings: dict[tuple[Spec, ...], Shared[tuple[Recording, Bodies]]] = {}
        self._flops: dict[tuple[int, ...], float] = {}
        self._keys: dict[object, CostKey] = {}

    def parts(self) -> tuple[PartTemplate, ...]:
        rows = zip(*(self.pieces.boxes(port) for port in self.ports), strict=True)
        return tuple([self._part(part, boxes) for part, boxes in zip(self.pieces.parts, rows, strict=True)])

    def _part(self, part: Part, boxes: Sequence[Box]) -> PartTemplate:
        step, num_inputs = self.step, len(self.step.inputs)
        shapes = tuple([box.shape for box in boxes])
        specs = tuple(map(Spec, shapes[:num_inputs], self.dtypes))
        if specs not in self._recordings:
            self._recordings[specs] = Shared(lambda like: (_record(step, like, specs), {}))
        recording, bodies = self._recordings[specs].of(part)
        wanted = _wanted(step, recording)
        for shape, spec, port in zip(shapes[num_inputs:], wanted, step.outputs, strict=True):
            assert spec is None or spec.shape == shape, f"{step.name}: {port} is {spec}, its box has shape {shape}"
        inputs = tuple([box if i in recording.reads else None for i, box in enumerate(boxes[:num_inputs])])
        outputs = tuple(
            [box if spec is not None else None for box, spec in zip(boxes[num_inputs:], wanted, strict=True)]
        )
        touched = tuple([box is not None for box in (*inputs, *outputs)])
        return PartTemplate(inputs, outputs, self._key(part, touched, shapes), recording, bodies)

    def _key(self, part: Part, touched: tuple[bool, ...], shapes: tuple[tuple[int, ...], ...]) -> CostKey:
        known = (touched, shapes, flops := self._work(part))
        if known not in self._keys:
            rows = zip(shapes, self.dtypes, touched, strict=True)
            self._keys[known] = _cost_key(self.step, [(s, d) for s, d, t in rows if t], flops, self.dtypes)
        return self._keys[known]

    def _work(self, part: Part) -> float:
        op = self.step.node.op
        if type(op).flops is not Op.flops:
            return op.flops(self.step.which, part)
        lengths = tuple([hi - lo for lo, hi in part.ranges.values()])
        if lengths not in self._flops:
            self._flops[lengths] = op.flops(self.step.which, part)
        return self._flops[lengths]


def _record(step: Step, part: Part, specs: tuple[Spec, ...]) -> Recording:
    """Run the pass's body on shapes; its inputs are numbered as the step's ports."""
    op, which = step.node.op, step.which
    roles = [p.role for p in step.inputs]
    pulled = tuple(s for s, role in zip(specs, roles, strict=True) if role == "dy")
    operands = [s for s, role in zip(specs, roles, strict=True) if role == "x"]
    positional = [*(pulled if op.flows == 1 else [pulled] if pulled else []), *operands]
    kept = tuple(s for s, role in zip(specs, roles, strict=True) if role == "y")
    context: dict[str, object] = {"at": part} if "at" in op.asks(which) else {}
    if kept:
        context["y"] = kept
    return record(getattr(op, PASSES[which]), positional, _mask(step), **context)


def _mask(step: Step) -> tuple[bool, ...] | None:
    """Which of the body's results are wanted: it gives one for each operand of its kind."""
    if step.which == "F":
        return None
    indices = {p.index for p in step.outputs}
    given = [i for i, o in enumerate(step.node.alignment.operands) if o.param == (step.which == "W")]
    return tuple(i in indices for i in given)


def _wanted(step: Step, recording: Recording) -> list[Spec | None]:
    """The specs of the results that the step's output ports take, in the order of the ports."""
    mask = _mask(step)
    return [r for n, r in enumerate(recording.results) if mask is None or mask[n]]


def _cost_key(
    step: Step, arrays: Sequence[tuple[tuple[int, ...], str]], flops: float, dtypes: Sequence[str]
) -> CostKey:
    """The cost of a part that touches arrays of these shapes and dtypes; dtypes: those of all ports."""
    op = step.node.op
    shapes = ";".join("x".join(map(str, shape)) for shape, _ in arrays)
    settings = ",".join(f"{name}={value}" for name, value in op.cost_settings)
    nbytes = sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in arrays)
    dtype = dtypes[len(step.inputs)]
    return CostKey(f"{op.name}.{step.which}", f"{shapes}|{settings}", dtype, round(flops), nbytes)

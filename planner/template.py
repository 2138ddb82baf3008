"""Templates: what every part of one pass of one operator touches and computes, for local shapes and a split.

One template serves all nodes of the same operator, shapes and split, whatever their names and processors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from castile.planner.op import PASSES, Part
from castile.planner.program import Micro, Port, Step
from castile.planner.strategy import parts
from castile.planner.trace import Recording, record
from castile.planner.vocabulary import Spec
from castile.runtime.region import Box
from castile.runtime.task import Body, CostKey


@dataclass(frozen=True, eq=False)
class PartTemplate:
    """One part: the box of each port (None: not touched), inputs then outputs, its cost and its recorded body."""

    inputs: tuple[Box | None, ...]
    outputs: tuple[Box | None, ...]
    key: CostKey
    recording: Recording
    bodies: dict[tuple[bool, ...], Body] = field(default_factory=dict)
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

    def touching(self, port: int, output: bool, replicas: int) -> np.ndarray:
        """The tasks that touch a port when each part has that many replicas, in order."""
        key = (port, output, replicas)
        if key not in self._touching:
            touched = [self.box(part, port, output) is not None for part in range(len(self.parts))]
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

    def get(self, step: Step, split: dict[str, int], dtypes: Callable[[str], str]) -> StepTemplate:
        """The template of a step under a split; dtypes(region) names what a region's elements are."""
        a = step.node.alignment
        ports = tuple((p.role, p.index, dtypes(p.region)) for p in (*step.inputs, *step.outputs))
        cuts = tuple(sorted((axis, d) for axis, d in split.items() if d > 1))
        # where a body does not ask which piece it is, all microbatches are alike
        micro = step.micro if "at" in step.node.op.asks(step.which) else Micro(0, step.micro.count)
        kind = (step.which, step.axis, micro, tuple(p.cut for p in (*step.inputs, *step.outputs)))
        key = (step.node.op, tuple(a.extents.items()), a.operands, a.results, kind, ports, cuts)
        if key not in self._made:
            pieces = parts(step.node, split, step.axis, (micro.number, micro.count))
            recordings: dict[object, Recording] = {}
            self._made[key] = StepTemplate(tuple(_part(step, piece, dtypes, recordings) for piece in pieces))
        return self._made[key]


def _part(step: Step, part: Part, dtypes: Callable[[str], str], recordings: dict[object, Recording]) -> PartTemplate:
    axis = step.axis
    inputs = [_box(part, port, axis, step.micro.count) for port in step.inputs]
    outputs = [_box(part, port, axis, step.micro.count) for port in step.outputs]
    specs = tuple(Spec(box.shape, dtypes(port.region)) for box, port in zip(inputs, step.inputs, strict=True))
    asks_at = "at" in step.node.op.asks(step.which)
    same = (specs, tuple(part.ranges.items()) if asks_at else ())
    if same not in recordings:
        recordings[same] = _record(step, part, specs)
    recording = recordings[same]
    touched = [box if i in recording.reads else None for i, box in enumerate(inputs)]
    written = [box if spec is not None else None for box, spec in zip(outputs, _wanted(step, recording), strict=True)]
    for box, spec, port in zip(outputs, _wanted(step, recording), step.outputs, strict=True):
        assert spec is None or spec.shape == box.shape, f"{step.name}: {port} is {spec}, its box {box}"
    key = _cost_key(step, part, touched, written, dtypes)
    return PartTemplate(tuple(touched), tuple(written), key, recording)


def _box(part: Part, port: Port, axis: str, count: int) -> Box:
    """What a part touches of a port's region; a region that holds one microbatch begins where that begins."""
    box = part.reads(port.index) if port.role in ("x", "dx") else part.writes(port.index)
    if port.cut is None:
        return box
    a = part.alignment
    operand = (a.operands if port.role in ("x", "dx") else a.results)[port.index]
    length = a.shape(operand)[port.cut] // count
    first = part.ranges[axis][0] // (a.extents[axis] // count) * length
    lo, hi = list(box.lo), list(box.hi)
    lo[port.cut] -= first
    hi[port.cut] -= first
    return Box(tuple(lo), tuple(hi))


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
    step: Step, part: Part, inputs: list[Box | None], outputs: list[Box | None], dtypes: Callable[[str], str]
) -> CostKey:
    op = step.node.op
    ports = zip((*inputs, *outputs), (*step.inputs, *step.outputs), strict=True)
    boxes = [(box, dtypes(port.region)) for box, port in ports if box]
    shapes = ";".join("x".join(map(str, box.shape)) for box, _ in boxes)
    settings = ",".join(f"{name}={value}" for name, value in op.cost_settings)
    nbytes = sum(prod(box.shape) * np.dtype(dtype).itemsize for box, dtype in boxes)
    dtype = dtypes(step.outputs[0].region)
    return CostKey(f"{op.name}.{step.which}", f"{shapes}|{settings}", dtype, round(op.flops(step.which, part)), nbytes)

"""Templates: what every part of one pass of one operator touches and computes, for local shapes and a split.

One template serves all nodes of the same operator, shapes and split, whatever their names and processors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np

from castile.planner.bodies.trace import Recording
from castile.planner.bodies.vocabulary import Spec
from castile.planner.graph import Node
from castile.planner.lowering.cost_keys import KeyMaker
from castile.planner.lowering.grid import Grid, Layout, refinement
from castile.planner.lowering.range_cache import RangeCache, WatchedPart
from castile.planner.lowering.recordings import Recorder, place_counts
from castile.planner.op import Op, Part
from castile.planner.step.program import WHOLE_BATCH, Micro, Step, bearing
from castile.runtime.region import Box
from castile.runtime.task import Body, CostKey

Bodies = dict[tuple[bool, ...], Body]
Cuts = tuple[tuple[str, int], ...]
Frames = tuple[tuple[int, tuple[int, ...]], ...]  # input ports, and the shapes of arrays that they read in strides
Boxes = dict[tuple[int, bool], tuple[Box | None, ...]]  # by the number of a port and whether it is an output
InStrides = tuple[tuple[int, int, tuple[int, ...]], ...]  # tasks, input ports, and the same
Shapes = tuple[tuple[int, ...], ...]
# For each port, inputs then outputs, how the boxes of its parts are shifted within its region, () where they are not;
# () if none are.
Places = tuple[Hashable, ...]
# Of a port its role, its region, and how its boxes are shifted within that.
_ROLE, _REGION, _LYING = attrgetter("role", "index"), attrgetter("region"), attrgetter("cut", "begin")


class Work(msgspec.Struct, frozen=True, eq=False):
    """What parts with equal computations have in common: cost, recording, and the ports that they touch.

    bodies   made of the recording, and shared by all works that have it
    inputs, outputs   for each port whether it is touched
    dtypes   of the touched outputs, in their regions
    turns    for each touched port the order of its dims in its region, () where that is the same
    """

    key: CostKey
    recording: Recording
    bodies: Bodies
    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    dtypes: tuple[str, ...]
    turns: tuple[tuple[int, ...], ...]
    _strided: dict[Frames, CostKey] = msgspec.field(default_factory=dict)

    def strided_key(self, frames: Frames) -> CostKey:
        """The cost where input ports are read in strides out of arrays of these shapes."""
        known = self._strided
        if frames not in known:
            touched = [n for n, is_touched in enumerate(self.inputs) if is_touched]
            known[frames] = self.key.strided({touched.index(port): shape for port, shape in frames})
        return known[frames]

    def body(self, adds: tuple[bool, ...]) -> Body:
        """The kernel calls, with output port j accumulated where adds[j]."""
        made = tuple([a for a, is_touched in zip(adds, self.outputs, strict=True) if is_touched])
        if made not in self.bodies:
            self.bodies[made] = self.recording.body(made, self.dtypes, self.turns)
        return self.bodies[made]


class PartTemplate(NamedTuple):
    """One part: the box of each port (None: not touched), inputs then outputs, and its work."""

    inputs: tuple[Box | None, ...]
    outputs: tuple[Box | None, ...]
    work: Work

    @property
    def key(self) -> CostKey:
        return self.work.key

    def body(self, adds: tuple[bool, ...]) -> Body:
        """The kernel calls, with output port j accumulated where adds[j]."""
        return self.work.body(adds)


class Works:
    """What the parts of a pass compute, wherever in their regions the boxes lie that they touch.

    each     the distinct works; parts that differ only in positions that they pass to kernels share one
    number   the work of each part
    boxes    the boxes of ports that are not shifted, by part
    """

    def __init__(self, each: Sequence[Work], number: Sequence[int]) -> None:
        self.each, self.number = each, np.array(number)
        self.boxes: Boxes = {}
        self._private: dict[tuple[bool, ...], np.ndarray] = {}

    def of(self, part: int) -> Work:
        return self.each[self.number[part]]

    def private_adding(self, adds: tuple[bool, ...]) -> np.ndarray:
        """The private bytes of each part with output port j accumulated if adds[j]."""
        if adds not in self._private:
            self._private[adds] = np.array([work.body(adds).private_bytes for work in self.each])[self.number]
        return self._private[adds]

    @cached_property
    def keys(self) -> tuple[tuple[CostKey, ...], np.ndarray]:
        """The distinct cost keys and the number of each part's."""
        distinct: dict[CostKey, int] = {}
        numbers = np.array([distinct.setdefault(work.key, len(distinct)) for work in self.each])
        return tuple(distinct), numbers[self.number]


class StepTemplate:
    """All parts of a pass, row-major in the order of the axis line.

    does   what they compute: one object for all passes that differ only in where in regions their boxes lie
    """

    def __init__(self, step: Step, cuts: Cuts, grid: Grid, common: _Common, places: Places) -> None:
        self._step, self._grid, self._common, self._places = step, grid, common, places
        self._layouts = layouts_of(step, grid)
        self.does = common.works(step, cuts, grid, self._layouts)
        self.num_parts = grid.count
        self._parts: dict[int, PartTemplate] = {}
        self._boxes: Boxes = {}
        self._strided: dict[tuple[int, ...], tuple[object, tuple[np.ndarray, list[CostKey]]]] = {}

    @property
    def parts(self) -> list[PartTemplate]:
        return [self.part(number) for number in range(self.num_parts)]

    def part(self, number: int) -> PartTemplate:
        """One part, with a work of its own, which passes its own positions to kernels."""
        if number not in self._parts:
            inputs = tuple([self.boxes(port, False)[number] for port in range(len(self._step.inputs))])
            outputs = tuple([self.boxes(port, True)[number] for port in range(len(self._step.outputs))])
            work = self._common.work(self._step.which, self._grid, self._layouts, number)
            self._parts[number] = PartTemplate(inputs, outputs, work)
        return self._parts[number]

    def known(self, port: int, output: bool) -> Boxes:
        """The cached boxes of a port: one object for all templates in which they are the same."""
        is_moved = self._places and self._places[self._row(port, output)]
        return self._boxes if is_moved else self.does.boxes

    def _row(self, port: int, output: bool) -> int:
        """The number of a port among all, inputs then outputs."""
        return port + len(self._step.inputs) * output

    def boxes(self, port: int, output: bool) -> tuple[Box | None, ...]:
        """The box of a port by part."""
        known = self.known(port, output)
        if (port, output) not in known:
            row = self._row(port, output)
            layout, bears = self._layouts[row], self._common.bears[row]
            boxes = (layout.each(bears.region_box) if bears.order else layout).by_part
            touched = [(work.outputs if output else work.inputs)[port] for work in self.does.each]
            rows = zip(boxes, self.does.number.tolist()) if not all(touched) else ()
            known[port, output] = tuple([box if touched[n] else None for box, n in rows]) or boxes
        return known[port, output]

    def are_apart(self, port: int, output: bool) -> bool:
        """Whether all parts are known to have a box at a port, and all these boxes are disjoint."""
        return self._layouts[self._row(port, output)].are_apart and None not in self.boxes(port, output)

    def strided(self, replicas: int, rows: Sequence[InStrides]) -> tuple[np.ndarray, list[CostKey]]:
        """The tasks that read arrays in strides, given the number of replicas of each part, and their cost keys."""
        # Rows are objects of flow templates, so equal ones are the same object, which is kept to keep its identity.
        key = (replicas, *map(id, rows))
        if key not in self._strided:
            frames: dict[int, dict[int, tuple[int, ...]]] = {}
            for task, port, frame in chain.from_iterable(rows):
                frames.setdefault(task, {})[port] = frame
            works = [(self.does.of(task // replicas), tuple(sorted(of.items()))) for task, of in frames.items()]
            keys = [work.strided_key(of) for work, of in works]
            self._strided[key] = rows, (np.array(list(frames), np.int64), keys)
        return self._strided[key][1]


def layouts_of(step: Step, grid: Grid) -> list[Layout]:
    """The layout of each port of a step."""
    return [grid.layout(port) for port in (*step.inputs, *step.outputs)]


def cuts_of(split: Mapping[str, int]) -> Cuts:
    """A split in canonical form: the axes that are cut, sorted by name."""
    return tuple(sorted([(axis, d) for axis, d in split.items() if d > 1]))


class Templates:
    """The templates made so far; a search shares one of these over all its proposals."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, Cuts], StepTemplate] = {}
        self._grids: dict[object, Grid] = {}
        # by the number of those that compute the same
        self._common: dict[int, _Common] = {}
        self._numbers: dict[object, int] = {}
        self._coarse: dict[tuple[str, int], int] = {}
        self._sampled: dict[tuple[int, str, str], bool] = {}
        # by identity, each with what keeps its identity its own
        self._nodes: dict[int, tuple[Node, int]] = {}
        self._steps: dict[int, tuple[Step, int, Micro]] = {}
        self._alike: dict[int, tuple[int, Places]] = {}

    def get(self, step: Step, split: dict[str, int], dtypes: Callable[[str], str]) -> StepTemplate:
        """The template of a step under a split; dtypes(region) is the dtype of a region's elements."""
        cuts, kind = cuts_of(split), self.kind(step, dtypes)
        key = kind, cuts
        if key not in self._made:
            (number, places), micro = self._alike[kind], self._steps[id(step)][2]
            grid = self.grid(step.node, cuts, step.axis, micro)
            if number not in self._common:
                self._common[number] = _Common(step, dtypes)
            common = self._common[number]
            self._made[key] = StepTemplate(step, cuts, grid, common, places)
            assert micro == step.micro or step.axis not in common.looked_at, f"{step.name} looks at its samples"
        return self._made[key]

    def grid(self, node: Node, cuts: Cuts, axis: str = "", micro: Micro = WHOLE_BATCH) -> Grid:
        """The parts of a node, one for all nodes of its kind."""
        key = (self.node_kind(node), axis, micro, cuts)
        if key not in self._grids:
            self._grids[key] = Grid(node, dict(cuts), axis, micro)
        return self._grids[key]

    def kind(self, step: Step, dtypes: Callable[[str], str]) -> int:
        """A number, equal for steps that have the same template under every split."""
        if id(step) not in self._steps:
            # where a body does not ask which samples it is given, all microbatches are alike
            micro = step.micro if self._looks_at_samples(step, dtypes) else Micro(0, step.micro.count)
            ports = (*step.inputs, *step.outputs)
            roles, elements = tuple(map(_ROLE, ports)), tuple(map(dtypes, map(_REGION, ports)))
            key = (self.node_kind(step.node), step.which, step.axis, micro, roles, elements, tuple(map(_LYING, ports)))
            kind = self._numbers.setdefault(key, len(self._numbers))
            if kind not in self._alike:
                alike = (self._recorded_kind(step.node), *key[1:-1])
                self._alike[kind] = self._numbers.setdefault(alike, len(self._numbers)), self._places(step)
            self._steps[id(step)] = step, kind, micro
        return self._steps[id(step)][1]

    def _looks_at_samples(self, step: Step, dtypes: Callable[[str], str]) -> bool:
        """Whether a pass's recording depends on the microbatch: determined by recording its body on the whole node."""
        if step.micro.count == 1 or "at" not in step.node.op.asks(step.which):
            return False
        known = self.node_kind(step.node), step.which, step.axis
        if known not in self._sampled:
            common = _Common(step, dtypes)
            grid = self.grid(step.node, (), step.axis, step.micro)
            common.works(step, (), grid, layouts_of(step, grid))
            self._sampled[known] = step.axis in common.looked_at
        return self._sampled[known]

    def alike(self, kind: int) -> tuple[int, Places]:
        """A number, equal for all kinds of steps that compute the same, wherever in regions their boxes lie; and where
        these lie.
        """
        return self._alike[kind]

    def _places(self, step: Step) -> Places:
        op, found = step.node.op, []
        for port in (*step.inputs, *step.outputs):
            is_asked = op.unrecorded and port.of_operand and not op.follows(port.index)
            place = port.cut, port.begin, self.node_kind(step.node) if is_asked else 0
            found.append(() if place == (None, (), 0) else place)
        return tuple(found) if any(found) else ()

    def node_kind(self, node: Node) -> int:
        """A number, equal for nodes of the same operator and shapes."""
        if id(node) not in self._nodes:
            key = node.op, node.alignment
            self._nodes[id(node)] = node, self._numbers.setdefault(key, len(self._numbers))
        return self._nodes[id(node)][1]

    def cost_kind(self, node: Node) -> int:
        """A number, equal for nodes of the same operator and shapes that cost the same."""
        return self._coarser(node, "cost", lambda op: op.cost_settings)

    def _recorded_kind(self, node: Node) -> int:
        """A number, equal for nodes whose bodies record the same."""
        return self._coarser(node, "recorded", lambda op: op.recorded_settings)

    def _coarser(self, node: Node, what: str, settings: Callable[[Op], Hashable]) -> int:
        """A number, equal for nodes of the same operator and shapes with equal values of some of its settings."""
        known = what, self.node_kind(node)
        if known not in self._coarse:
            key = what, type(node.op), settings(node.op), node.alignment
            self._coarse[known] = self._numbers.setdefault(key, len(self._numbers))
        return self._coarse[known]


class _Common:
    """What parts of steps with equal recordings have in common, under every split."""

    def __init__(self, step: Step, dtypes: Callable[[str], str]) -> None:
        self.step = step
        self.dtypes = [dtypes(port.region) for port in (*step.inputs, *step.outputs)]
        self.bears = bearing(step)
        self._turns = [one.positions for one in self.bears]
        self._recorder, self._key_maker = Recorder(step), KeyMaker(step, self.dtypes)
        self._place_counts = place_counts(step)
        # the axes on whose ranges depends what parts record
        self._axes = set[str]()
        self._recordings: dict[Shapes, RangeCache[tuple[Recording, Bodies]]] = {}
        self._alike: dict[object, tuple[Recording, Bodies]] = {}
        self._works: dict[object, Work] = {}
        self._split: dict[Cuts, Works] = {}

    @property
    def looked_at(self) -> set[str]:
        """The axes on whose ranges recordings of parts have depended so far."""
        return {axis for shared in self._recordings.values() for axis in shared.axes}

    def works(self, step: Step, cuts: Cuts, grid: Grid, layouts: Sequence[Layout]) -> Works:
        """The works of these steps under a split, the same for all: they touch boxes of the same shapes."""
        if cuts not in self._split:
            self._split[cuts] = self._find(step.which, grid, layouts)
        return self._split[cuts]

    def _find(self, which: str, grid: Grid, layouts: Sequence[Layout]) -> Works:
        alike = refinement(grid.by_length, grid.by_flops(which))
        for layout in layouts:
            alike = alike if layout.is_even else refinement(alike, layout.by_shape)
        axes: set[str] | None = None
        while axes != self._axes:
            axes = set(self._axes)
            kinds = refinement(alike, grid.along([axis for axis in grid.blocks if axis in axes]))
            found = [self.work(which, grid, layouts, first) for first in kinds.firsts]
        return Works(found, kinds.of)

    def work(self, which: str, grid: Grid, layouts: Sequence[Layout], number: int) -> Work:
        """The work of a part."""
        shapes = tuple([layout.shape(number) for layout in layouts])
        flops, given = grid.flops(which, number), shapes[: len(self.step.inputs)]
        if given not in self._recordings:
            self._recordings[given] = RangeCache()
        shared = self._recordings[given]
        recording, bodies = shared.of(grid.part(number), partial(self._recorded, given))
        if self._place_counts:
            self._axes |= shared.axes
        known = (shapes, flops, id(bodies))
        if known not in self._works:
            self._works[known] = self._made(recording, bodies, shapes, flops, grid.part(number))
        return self._works[known]

    def _recorded(self, given: Shapes, part: Part) -> tuple[Recording, Bodies]:
        """A part's recording, with the bodies made of it; shared by parts that ask for their position and still record
        the same.
        """
        recording = self._recorder.recorded(part, tuple(map(Spec, given, self.dtypes)))
        looked = isinstance(part.ranges, WatchedPart) and part.ranges.looked_at
        return self._alike.setdefault((given, recording.identity), (recording, {})) if looked else (recording, {})

    def _made(
        self, recording: Recording, bodies: Bodies, shapes: tuple[tuple[int, ...], ...], flops: float, part: Part
    ) -> Work:
        num_inputs, made = len(self.step.inputs), self._recorder.wanted(recording)
        for shape, one, port in zip(shapes[num_inputs:], made, self.step.outputs, strict=True):
            assert one is None or one.shape == shape, f"{self.step.name}: {port} is {one}, its box has shape {shape}"
        inputs, outputs = tuple([i in recording.reads for i in range(num_inputs)]), tuple([s is not None for s in made])
        touched = [n for n, t in enumerate((*inputs, *outputs)) if t]
        key = self._key_maker.key([(n, shapes[n]) for n in touched], flops, part)
        dtypes = tuple([self.dtypes[n] for n in touched if n >= num_inputs])
        return Work(key, recording, bodies, inputs, outputs, dtypes, tuple([self._turns[n] for n in touched]))

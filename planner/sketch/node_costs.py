"""Costs of nodes under a split: the seconds of their passes, and the bytes that they keep.

The largest part represents all of them. Costs are computed when a walk first needs them. It does not know placements.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import accumulate, groupby, islice
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from castile.planner.bodies.vocabulary import Spec, itemsize
from castile.planner.cost import CostModel
from castile.planner.graph import Node
from castile.planner.lower import Lowering
from castile.planner.lowering.cost_keys import KeyMaker, compute_dtype, kernel_of, lookup_ports
from castile.planner.lowering.ragged import row_pointers
from castile.planner.lowering.recordings import Recorder
from castile.planner.lowering.vectorized import Cut
from castile.planner.sketch.largest import Largest
from castile.planner.step.fetching import AHEAD
from castile.planner.step.program import FETCHED, GRADIENT, Program, Step, bearing, fetch_name
from castile.planner.strategy import parts
from castile.runtime.task import ALIGNED, CHANNELS, CostKey
from castile.runtime.timeline import PICOSECONDS

# Nodes that cast, update and clip a parameter are called by its name, with one of these behind it.
OF_PARAMS = ("fetch", "update", "square_sum", "clip")


def param_of(name: str, program: Program) -> str:
    """The parameter that a node of that name casts, updates or clips, "" where it is none of these."""
    param, _, what = name.rpartition("/")
    return param if what in OF_PARAMS and param in program.params else ""


class NodeCosts:
    """Seconds and bytes of nodes of one graph.

    step_kinds   by slot, equal for steps that have the same template under every split
    is_plain   whether all costs are rooflines of one kind of processor, of which many are computed at once
    """

    def __init__(self, lowering: Lowering, cost: CostModel, program: Program, step_kinds: Sequence[int]) -> None:
        self._lowering, self._cost, self._program, self._step_kinds = lowering, cost, program, step_kinds
        # Touched ports by kind of passes, and by what kinds share that differ only in the length of axes.
        self._touching: dict[int, tuple[bool, ...]] = {}
        self._known: dict[object, tuple[bool, ...]] = {}
        self._anew, self._numbers = {*lowering.recompute}, dict[str, int]()
        self._settings: dict[object, int] = {}
        # Once any kernel was measured, what was learned from it changes the price of all others.
        probe = cost.seconds(CostKey("", "", "float32", 1, 1))
        self.is_plain = len(lowering.machine.kinds) == 1 and probe.source == "roofline"

    @cached_property
    def keeps(self) -> dict[str, tuple[tuple[bool, int], ...]]:
        """By node, which of its operands (True) and results its parts keep in memory until the gradient passes: (True,
        1) is its second operand.

        These are what gradient passes read, each tensor kept where the first node lies that reads it so; all else is
        freed before. Of recomputed activations only the run of passes counts that needs most at once.
        """
        tensors, let_go = self._lowering.graph.tensors, self._let_go()
        touched: dict[int, list[int]] = {}
        keepers: dict[str, tuple[str, bool, int]] = {}
        for step, kind in zip(self._program.steps, self._step_kinds, strict=True):
            if step.which == "F" and not step.again:
                continue
            if kind not in touched:
                rows = zip(step.inputs, self._touched(step), strict=False)
                touched[kind] = [n for n, (port, t) in enumerate(rows) if t and port.role in ("x", "y")]
            node = step.node
            for port in [step.inputs[n] for n in touched[kind]]:
                # Gradient passes of earlier nodes come later, so the last entry is the first node's.
                if port.region not in let_go:
                    tensor = (node.inputs if port.role == "x" else node.outputs)[port.index]
                    keepers[tensor] = node.name, port.role == "x", port.index
        found: dict[str, list[tuple[bool, int]]] = {}
        for tensor, (name, is_operand, index) in keepers.items():
            if not tensors[tensor].param:
                found.setdefault(name, []).append((is_operand, index))
        return {name: tuple(sorted(ports)) for name, ports in found.items()}

    def _let_go(self) -> set[str]:
        """The regions that are freed and recomputed, without those of the run of passes that needs most memory at once,
        if that is more than what was freed before it begins.
        """
        steps = self._program.steps
        again = {port.region for step in steps if step.again for port in step.outputs}
        if not again:
            return again
        sizes = {flow.region: prod(flow.shape) * itemsize(flow.dtype) for flow in self._program.flows}
        last = {p.region: s.slot for s in steps if s.which != "F" or s.again for p in s.inputs if p.role in ("x", "y")}
        kept = again | self._program.params
        done = sorted((slot, sizes[of]) for of, slot in last.items() if of not in kept)
        slots, upto = np.array([slot for slot, _ in done]), row_pointers([nbytes for _, nbytes in done])
        lasting = {p.region for s in steps if s.which != "F" for p in s.inputs}
        most, left = 0, set[str]()
        for begin, run in _runs(steps):
            more = sum(sizes[region] for region in run & lasting) - int(upto[np.searchsorted(slots, begin)])
            if more > most:
                most, left = more, run & lasting
        return again - left

    @cached_property
    def _reader(self) -> dict[str, str]:
        """By input of the graph the first node that reads it."""
        graph = self._lowering.graph
        readers = {name: node.name for node in reversed(graph.nodes.values()) for name in node.inputs}
        return {name: readers[name] for name in graph.inputs if name in readers}

    def seconds(self, asked: Sequence[tuple[Largest, Sequence[Sequence[Step]]]]) -> list[list[np.ndarray]]:
        """For groups of nodes that can be computed together, float64[count, T] for each pass that one of them decides:
        the seconds of the largest part under each split, by the type of processor.

        asked   of each group its largest parts, and for each pass the passes of all its nodes
        """
        rows = [(steps[0], self._of(own, steps)) for own, every in asked for steps in every]
        found = iter(self._rooflines(rows) if self.is_plain else [self._priced(*row) for row in rows])
        return [list(islice(found, len(every))) for _, every in asked]

    def together(self, node: Node, steps: Sequence[Step]) -> Hashable:
        """A key, equal for nodes whose costs can be computed together in arrays, given the passes that they decide:
        only their extents differ.
        """
        dtypes, tensors = self._program.dtypes, self._lowering.graph.tensors
        passes = []
        for step in steps:
            ports = tuple([(p.role, p.index, dtypes[p.region]) for p in (*step.inputs, *step.outputs)])
            param = param_of(step.node.name, self._program)
            operand = node.inputs.index(param) if param else -1
            passes.append((self._alike(step.node), step.node.alignment.frozen, step.which, step.micro, ports, operand))
        held = tuple([(tensors[name].dtype, self._reader.get(name) == node.name) for name in node.inputs])
        made = tuple([tensors[name].dtype for name in node.outputs])
        return self._alike(node), node.alignment.frozen, self.keeps.get(node.name), tuple(passes), held, made

    def _of(self, own: Largest, steps: Sequence[Step]) -> Largest:
        """The largest parts of passes that nodes decide, one pass of each node."""
        if steps[0].node.name == own.node.name:
            return own
        return own.like([step.node for step in steps], self.of_param(own.node, steps[0], own.cut))

    def _rooflines(self, rows: Sequence[tuple[Step, Largest]]) -> list[np.ndarray]:
        """Seconds, in whole picoseconds, of kernels with known operations and bytes: the roofline model."""
        processor, dtypes, counts = self._lowering.machine.kinds[0], self._program.dtypes, [of.count for _, of in rows]
        flops, nbytes, each = (np.zeros(sum(counts)) for _ in range(3))
        rates, ends = np.empty(len(flops)), list(accumulate(counts))
        places = [slice(*place) for place in zip([0, *ends], ends)]
        for (step, of), here in zip(rows, places, strict=True):
            every = [dtypes[port.region] for port in (*step.inputs, *step.outputs)]
            flops[here], nbytes[here] = of.flops(step.which), self._moved(step, of, every)
            each[here] = of.rows * processor.row_seconds if processor.row_seconds else 0
            each[here] += of.looks(step.which) * processor.look_seconds if processor.look_seconds else 0
            dtype, kernel = compute_dtype(step, every), kernel_of(step)
            planar = ["planar"] * (processor.has_traits and self._is_planar(step))
            rate, slower = (processor.flops_rate(dtype, kernel, traits) for traits in (planar, [*planar, "unaligned"]))
            rates[here] = rate if slower == rate else np.where(self._are_aligned(step, of), rate, slower)
        both = np.maximum if processor.overlaps else np.add
        work = both(np.rint(flops) / rates + each, nbytes / processor.bytes_per_second)
        seconds = np.maximum(1, np.rint((processor.task_overhead_seconds + work) * PICOSECONDS)) / PICOSECONDS
        return [seconds[here, None] for here in places]

    def _moved(self, step: Step, of: Largest, dtypes: Sequence[str]) -> Any:
        """The bytes that a pass reads and writes; dtypes: those of all its ports."""
        tables, ports = lookup_ports(step), (*step.inputs, *step.outputs)
        sizes = [
            (of.touches(port.index) if n in tables else of.size(port.of_operand, port.index)) * itemsize(dtype)
            for n, (port, dtype, touched) in enumerate(zip(ports, dtypes, self._touched(step), strict=True))
            if touched
        ]
        return sum(sizes)

    def _are_aligned(self, step: Step, of: Largest) -> Any:
        """For each split whether it is not "unaligned", as `CostKey.traits` says."""
        ports = zip((*step.inputs, *step.outputs), bearing(step), self._touched(step), strict=True)
        shapes = [(of.shape(port.of_operand, port.index), one.order) for port, one, t in ports if t]
        rows = [shape[order[-1] if order else -1] for shape, order in shapes if len(shape) > 1]
        return np.all(np.broadcast_arrays(*[row % ALIGNED == 0 for row in rows]), axis=0)

    def _is_planar(self, step: Step) -> bool:
        """Whether a step is "planar", as `CostKey.traits` says, however it is cut."""
        ports = zip(bearing(step), self._touched(step), strict=True)
        return not any(one.order[-1] == CHANNELS for one, touched in ports if touched and one.order)

    def _priced(self, step: Step, of: Largest) -> np.ndarray:
        """Seconds of kernels some of which were measured."""
        every = [self._program.dtypes[port.region] for port in (*step.inputs, *step.outputs)]
        ports = zip((*step.inputs, *step.outputs), self._touched(step), strict=True)
        rows = [(n, of.shape(port.of_operand, port.index)) for n, (port, t) in enumerate(ports) if t]
        key = KeyMaker(step, every).key(rows, of.flops(step.which), of.part)
        kinds = range(len(self._lowering.machine.kinds))
        return np.array([self._cost.picoseconds([key], kind) for kind in kinds]).T / PICOSECONDS

    def _touched(self, step: Step) -> tuple[bool, ...]:
        """Which of its ports a pass touches, inputs then outputs."""
        kind = self._step_kinds[step.slot]
        if kind not in self._touching:
            self._touching[kind] = self._found_touched(step)
        return self._touching[kind]

    def _found_touched(self, step: Step) -> tuple[bool, ...]:
        """`_touched`, computed once for all lengths of axes: operators touch the same ports whatever these are."""
        dtypes = self._program.dtypes
        ports = tuple([(p.role, p.index, dtypes[p.region]) for p in (*step.inputs, *step.outputs)])
        key = self._alike(step.node), step.which, ports
        if key not in self._known:
            micro = step.micro
            whole = parts(step.node, {}, step.axis, (micro.number, micro.count))[0]
            boxes = [whole.reads(p.index) if p.of_operand else whole.writes(p.index) for p in step.inputs]
            specs = tuple([Spec(box.shape, dtypes[p.region]) for p, box in zip(step.inputs, boxes, strict=True)])
            recorder = Recorder(step)
            recording = recorder.recorded(whole, specs)
            made = recorder.wanted(recording)
            self._known[key] = (*(n in recording.reads for n in range(len(specs))), *(one is not None for one in made))
        return self._known[key]

    def _alike(self, node: Node) -> int:
        """A number, equal for nodes of one operator with the same settings, whatever their extents."""
        if node.name not in self._numbers:
            op, a = node.op, node.alignment
            like = type(op), op.cost_settings, a.operands, a.results
            self._numbers[node.name] = self._settings.setdefault(like, len(self._settings))
        return self._numbers[node.name]

    def of_param(self, node: Node, step: Step, cut: Cut) -> Cut:
        """The split of a parameter's update that cuts the parameter as the node does."""
        index = node.inputs.index(param_of(step.node.name, self._program))
        mine, theirs = step.node.alignment, node.alignment.operands[index]
        along = zip(mine.operands[0].dims, theirs.dims, strict=True)
        return {own[0]: cut.get(of[0], 1) for own, of in along if own and of and own[0] not in mine.frozen}

    def nbytes(self, of: Largest, steps: Sequence[Step]) -> tuple[Any, Any, Any]:
        """(activations, all with updates whole, all with updates in pieces): bytes that a part of a node keeps, each a
        number or float64[count]. The first are for gradient passes; the other two all through a step, with parameters
        and what their updates need.

        Where updates are in pieces (as in ZeRO), processors that hold the same of a parameter have a share each of what
        its update needs. Gradients that microbatches add to are whole until the last has added its own, unless the
        parameter is fetched for each. What the host gives to all other microbatches lies there besides.
        """
        count = max((step.micro.count for step in steps), default=1)
        node, dtypes, tensors = of.node, self._program.dtypes, self._lowering.graph.tensors
        lying = [
            (1, of.size(*port), (node.inputs if port[0] else node.outputs)[port[1]])
            for port in self.keeps.get(node.name, ())
        ]
        kept = sum(size * itemsize(tensors[name].dtype) for _, size, name in lying)
        if count > 1:
            given = [n for n, name in enumerate(node.inputs) if self._reader.get(name) == node.name]
            lying += [(count - 1, of.size(True, n), node.inputs[n]) for n in given]
        total = in_pieces = sum(times * size * itemsize(tensors[name].dtype) for times, size, name in lying)
        for step in steps:
            param = param_of(step.node.name, self._program)
            if not param or not step.node.name.endswith("/update"):
                continue
            index = node.inputs.index(param)
            size = of.size(True, index)
            nbytes = size * itemsize(dtypes[param])
            is_cast = param + FETCHED in dtypes
            cast = size * itemsize(dtypes[param + FETCHED]) if is_cast else 0
            borne = node.alignment.operands[index].axes
            alike = prod(degree for axis, degree in of.cut.items() if axis not in borne)
            like = sum(o.dims == step.node.alignment.operands[0].dims for o in step.node.alignment.operands)
            if fetch_name(param) in self._anew:
                # The parameter as it is fetched is whole, and so is its gradient, which comes as activations go.
                passing = AHEAD * (cast if is_cast else nbytes)
                total, in_pieces = total + nbytes * like + passing, in_pieces + nbytes * like / alike + passing
                continue
            # New arrays, not changed in place: `total` and `in_pieces` may begin as one and the same array.
            total = total + nbytes * like + cast
            # The parameter is gathered whole to be computed with, and is freed as its gradient comes. That is whole
            # until it is scattered, which is when the last microbatch has added its own.
            is_alone = count > 1 and is_cast
            in_pieces = in_pieces + nbytes * np.minimum(like, (not is_alone) + like / alike) + (cast if is_alone else 0)
            if count > 1:
                in_pieces = in_pieces + size * itemsize(dtypes[param + GRADIENT]) * (1 - 1 / alike)
        return kept, total, in_pieces


def _runs(steps: Sequence[Step]) -> list[tuple[int, set[str]]]:
    """(slot of the first pass, regions made) of each run of consecutive recomputed passes."""
    runs = [list(run) for is_again, run in groupby(steps, key=attrgetter("again")) if is_again]
    return [(run[0].slot, {port.region for step in run for port in step.outputs}) for run in runs]

"""Lower bounds on the step of any plan of a graph on a machine, which show how good a plan is.

They leave transfers out, which only make a step longer, and look at no plan: each pass is taken under its best split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import msgspec
import numpy as np

from castile.planner.axes import Operand
from castile.planner.choices.space import space_of
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.lower import Lowering
from castile.planner.lowering.cost_keys import lookup_ports
from castile.planner.lowering.recordings import place_counts
from castile.planner.lowering.task_merging import only_call
from castile.planner.lowering.template import StepTemplate
from castile.planner.op import Op, Part
from castile.planner.step.program import Port, Program, Step
from castile.planner.strategy import parts
from castile.runtime.machine import Machine, Processor
from castile.runtime.timeline import PICOSECONDS

# With measured prices every split is priced; where all together have more parts than this, there is no bound.
MOST_PARTS = 20_000
# So many microbatches are looked at, however many there are.
FEWEST = 2


@dataclass(frozen=True)
class Bound:
    """Two bounds; no plan takes less than the larger of them.

    work_seconds    every pass under the split with the least work, spread evenly over all processors
    chain_seconds   the longest chain of dependent passes, each as long as its shortest part
    """

    work_seconds: float
    chain_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.work_seconds, self.chain_seconds)

    def on(self, share: float) -> float:
        """The larger of the two where only this share of the processors may be used."""
        return max(self.work_seconds / share, self.chain_seconds)

    def gap(self, seconds: float) -> float:
        """By which share a plan's step exceeds the bound: the most that any better plan could gain."""
        return seconds / self.seconds - 1


@dataclass(frozen=True)
class LeastTimes:
    """Picoseconds of a pass under its best split: of all its parts together, and of the shortest part."""

    total: int
    part: int


def lower_bound(evaluator: Evaluator, most_parts: int | None = None) -> Bound | None:
    """The bound for all plans in which no pass has more than `most_parts` parts, by default as many as there are
    processors.

    Without measurements the least time of a pass follows from the work of the whole, for any split (`_ByFigures`).
    Measured or learned costs do not add up so: half of a product may take more or less than half the time. Then every
    split that a search considers is costed (`_BySplits`), on arrays without strides. None where these are too many.
    """
    known = _known(evaluator, most_parts)
    if known is None:
        return None
    return Bound(known.work_seconds, _longest_chain(known.program, known) / PICOSECONDS)


def work_bound(evaluator: Evaluator) -> float:
    """The `work_seconds` of `lower_bound`, which are quick to compute; 0 where there is no bound."""
    known = _known(evaluator)
    return known.work_seconds if known else 0.0


def _known(evaluator: Evaluator, most_parts: int | None = None) -> _Known | None:
    lowering = evaluator.lowering
    # All microbatches do the same work, and none needs another.
    program = lowering.shortened(FEWEST).program(lowering.plan({}))
    most_parts = most_parts or lowering.machine.num_procs
    is_measured = bool(evaluator.cost_snapshot)
    if is_measured and _num_parts(program, most_parts) > MOST_PARTS:
        return None
    return (_BySplits if is_measured else _ByFigures)(lowering, program, evaluator.cost, most_parts)


def _num_parts(program: Program, most_parts: int) -> int:
    """The number of parts of all splits of all distinct passes."""
    kinds = {(s.node.op, tuple(s.node.alignment.extents.items()), s.which): s.node for s in program.steps}
    return sum(prod(split.values()) for node in kinds.values() for split in space_of(node, most_parts).splits)


class _Known:
    """The least times of each pass, computed once for all that share a template. Base of the two ways to compute them.
    """

    def __init__(self, lowering: Lowering, program: Program, cost: CostModel, most_parts: int) -> None:
        self.lowering, self.program, self.cost, self.most_parts = lowering, program, cost, most_parts
        self.dtypes = program.dtypes.__getitem__
        self._found: dict[StepTemplate, LeastTimes] = {}

    @property
    def work_seconds(self) -> float:
        """All passes under the splits with the least work, spread evenly over all processors."""
        work = sum(step.micro.times * self.of(step).total for step in self.program.steps)
        return work / self.lowering.machine.num_procs / PICOSECONDS

    def of(self, step: Step) -> LeastTimes:
        whole = self.template(step, {})
        if whole not in self._found:
            self._found[whole] = self.find(step, whole)
        return self._found[whole]

    def template(self, step: Step, split: dict[str, int]) -> StepTemplate:
        return self.lowering.templates.get(step, split, self.dtypes)

    def find(self, step: Step, whole: StepTemplate) -> LeastTimes:
        raise NotImplementedError


class _BySplits(_Known):
    """The least times, by the cost of every part of every split."""

    def find(self, step: Step, whole: StepTemplate) -> LeastTimes:
        if only_call(whole.part(0).work) is not None:
            # It may be joined with others into one task, and its share of that was not measured.
            return LeastTimes(0, 0)
        each = [
            self._prices(step, split) for split in space_of(step.node, self.most_parts).splits if _fits(step, split)
        ]
        return LeastTimes(min(int(prices.sum()) for prices in each), min(int(prices.min()) for prices in each))

    def _prices(self, step: Step, split: dict[str, int]) -> np.ndarray:
        """Picoseconds of each part on the fastest kind of processor for it."""
        keys, of_part = self.template(step, split).does.keys
        kinds = range(len(self.lowering.machine.kinds))
        return np.min([self.cost.picoseconds(keys, kind) for kind in kinds], axis=0)[of_part]


class _ByFigures(_Known):
    """The least times, from the work of the whole and the smallest share of it that a part can have, on a processor as
    good as the best of the machine in every respect.
    """

    def __init__(self, lowering: Lowering, program: Program, cost: CostModel, most_parts: int) -> None:
        name, best = lowering.machine.name, _best(lowering.machine.processors)
        super().__init__(lowering, program, CostModel(Machine(name, (best,), ())), most_parts)
        # Several joined into one task have its overhead once.
        self._shared = CostModel(Machine(name, (msgspec.structs.replace(best, task_overhead_seconds=0.0),), ()))

    def find(self, step: Step, whole: StepTemplate) -> LeastTimes:
        key = whole.part(0).key
        nbytes = self._bytes(step, whole)
        share = _density(step) * _smallest_share(tuple(sorted(_free(step).values())), self.most_parts)
        # Operations and picoseconds are rounded for each part and for the whole, by a half at most.
        rounding = self.most_parts - 1
        total = msgspec.structs.replace(key, flops=max(0, key.flops - rounding), nbytes=sum(size for size, _ in nbytes))
        part = msgspec.structs.replace(
            key, flops=max(0, int(key.flops * share) - 1), nbytes=sum(least for _, least in nbytes)
        )
        cost = self.cost if only_call(whole.part(0).work) is None else self._shared
        together, alone = cost.picoseconds([total, part]).tolist()
        return LeastTimes(max(1, together - rounding), alone)

    def _bytes(self, step: Step, whole: StepTemplate) -> list[tuple[int, int]]:
        """(bytes of the whole, least bytes of a part) of each port of which every split touches at least as much as the
        whole.
        """
        free, piece, tables = _free(step), whole.part(0), lookup_ports(step)
        # A body that asks which part it computes may leave an operand unread.
        every = not place_counts(step)
        found = []
        for n, (port, box) in enumerate(zip((*step.inputs, *step.outputs), (*piece.inputs, *piece.outputs))):
            # Boxes that a hook gives may leave gaps between them.
            if box is None or _is_hooked(step, port):
                continue
            # Fewer numbers name fewer rows.
            borne = free if n in tables else _operand(step, port).axes
            axes = tuple(sorted(free[axis] for axis in borne if axis in free))
            volume = int(_whole_part(step).touches(port.index)) if n in tables else box.volume
            size = volume * np.dtype(self.dtypes(port.region)).itemsize
            found.append((size, int(size * _smallest_share(axes, self.most_parts)) if every else 0))
        return found


def _longest_chain(program: Program, known: _Known) -> int:
    """The earliest end of the last pass in picoseconds, where one part of each pass that it needs must end first."""
    producers = {flow.region: (prod(flow.shape), flow.producers) for flow in program.flows}
    ends: list[int] = []
    for step in program.steps:
        piece, begin = known.template(step, {}).part(0), 0
        for port, box in zip(step.inputs, piece.inputs, strict=True):
            if box is None or not _is_always_read(step, port):
                continue
            volume, made = producers[port.region]
            for slot, number in made:
                written = known.template(program.steps[slot], {}).part(0).outputs[number]
                # What is read of a region is there at the latest when a pass that writes all of it has ended.
                if written is not None and written.volume == volume:
                    begin = max(begin, ends[slot])
        ends.append(begin + known.of(step).part)
    return max(ends, default=0)


def _is_hooked(step: Step, port: Port) -> bool:
    """Whether the operator's own hook, not its axis line, says which box a part touches."""
    return port.of_operand and type(step.node.op).reads is not Op.reads and not _operand(step, port).param


def _is_always_read(step: Step, port: Port) -> bool:
    """Whether every part, however small, reads something through a port: so do the first and the last of each axis."""
    # Only the first of the parts that add to one piece read it.
    if _operand(step, port).param or port.role == "onto":
        return False
    if not _is_hooked(step, port):
        return True
    whole = step.node.whole()
    ends = [(axis, at) for axis, extent in _free(step).items() for at in (0, extent - 1)]
    slices = (Part(whole.op, whole.alignment, {**whole.ranges, axis: (at, at + 1)}) for axis, at in ends)
    return all(piece.reads(port.index).volume > 0 for piece in slices)


def _density(step: Step) -> float:
    """The least operations of a point over the mean of all points: 1 unless operations grow or fall along an axis."""
    op, whole = step.node.op, step.node.whole()
    total, density = op.flops(step.which, whole), 1.0
    if type(op).flops is Op.flops or total <= 0:
        return density
    for axis in _free(step):
        extent = whole.extent(axis)
        ends = (Part(op, whole.alignment, {**whole.ranges, axis: (at, at + 1)}) for at in (0, extent - 1))
        density *= min(1.0, min(op.flops(step.which, piece) for piece in ends) * extent / total)
    return density


def _whole_part(step: Step) -> Part:
    """A pass's whole computation in its microbatch, as one part."""
    return parts(step.node, {}, step.axis, (step.micro.number, step.micro.count))[0]


def _free(step: Step) -> dict[str, int]:
    """The axes of a pass that may be cut, with their lengths in one microbatch."""
    a = step.node.alignment
    extents = {axis: n // step.micro.count if axis == step.axis else n for axis, n in a.extents.items()}
    return {axis: extents[axis] for axis in a.axes if axis not in a.frozen and extents[axis] > 1}


def _fits(step: Step, split: dict[str, int]) -> bool:
    return all(degree <= _free(step).get(axis, 1) for axis, degree in split.items())


def _operand(step: Step, port: Port) -> Operand:
    a = step.node.alignment
    return (a.operands if port.of_operand else a.results)[port.index]


def _best(processors: Sequence[Processor]) -> Processor:
    """A processor that does everything at least as fast as any of these."""
    return Processor(
        "best",
        flops_per_second=max(p.flops_per_second for p in processors),
        bytes_per_second=max(p.bytes_per_second for p in processors),
        memory_bytes=max(p.memory_bytes for p in processors),
        overlaps=any(p.overlaps for p in processors),
        task_overhead_seconds=min(p.task_overhead_seconds for p in processors),
        float16_flops_per_second=max(p.flops_rate("float16") for p in processors),
        float64_flops_per_second=max(p.flops_rate("float64") for p in processors),
        bfloat16_flops_per_second=max(p.flops_rate("bfloat16") for p in processors),
    )


@lru_cache(maxsize=65536)
def _smallest_share(extents: tuple[int, ...], num_parts: int) -> float:
    """The least share of all points that one of at most `num_parts` parts can have. Blocks of one axis differ by at
    most one element.
    """
    if not extents:
        return 1.0
    extent, others = extents[0], extents[1:]
    # Among degrees that leave equally many parts for the other axes the largest has the smallest block.
    lefts = {num_parts // degree for degree in range(1, min(extent, num_parts) + 1)}
    degrees = {min(extent, num_parts // left) for left in lefts}
    return min(extent // degree / extent * _smallest_share(others, num_parts // degree) for degree in degrees)

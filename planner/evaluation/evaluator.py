"""Evaluation: what a plan is worth, by simulation, in time and memory.

It does not know how plans are found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from math import inf
from typing import NamedTuple

import msgspec
import numpy as np

from castile.planner.cost import CostModel
from castile.planner.costs import snapshot as snapshots
from castile.planner.costs.snapshot import Snapshot
from castile.planner.evaluation.busy_times import BusyTimes
from castile.planner.evaluation.copyable import NUM_LOWERED
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.folding import Folded, Folding
from castile.planner.evaluation.simulated_step import (
    SimulatedStep,
    WrittenTasks,
    simulate_step,
    simulate_step_in_window,
)
from castile.planner.evaluation.traffic import moved_bytes
from castile.planner.evaluation.unrolling import Unrolled, unroll
from castile.planner.lower import Lowering
from castile.planner.lowering.stages import num_stages
from castile.planner.simulate import Simulated
from castile.planner.simulation import repeats
from castile.planner.simulation.ordering import Slower
from castile.planner.strategy import PATH, READY, Config, Strategy
from castile.runtime import memory
from castile.runtime.memory import Packing
from castile.runtime.strict import suggestion
from castile.runtime.task import Kind, TaskGraph
from castile.runtime.timeline import PICOSECONDS
from castile.runtime.transfer import TooManyTransfers

# On FOLDED_FROM processors and more a plan is evaluated through one processor of each role. On LARGE and more, buckets
# are not tried that would make processors of one role differ, and only a few of many microbatches are packed.
FOLDED_FROM, LARGE = 16, 64

# Pipelines were seen to become periodic once all stages are busy and about this many further microbatches have come.
FILLING = 16
# In order PATH, or with microbatches begun ahead, it takes longer: this many times as many are written out.
IRREGULAR = 4

# Simulating more than MOST_SMALL tasks takes ten seconds; MOST_TASKS take three gigabytes.
MOST_SMALL, MOST_TASKS = 2**21, 5 * 2**20
MANY = "of its {} tasks no few say what all take: lay processors out alike, or use fewer microbatches"

# A plan replaces another only if it is better by this share: otherwise noise in costs would choose between equal ones.
WORTH = 1e-3

# What a search minimises: seconds of a training step, seconds of a forward pass, or bytes of the fullest processor.
OBJECTIVES = ("time", "latency", "memory")

Configs = Mapping[str, Config]
Key = tuple[int, int, str, int, frozenset[str], frozenset[tuple[str, Config]]]


class _Known(NamedTuple):
    """The cached results of a simulated plan, for any objective."""

    seconds: float
    peak_bytes: np.ndarray
    moved_bytes: int
    num_tasks: int
    num_collectives: int


class Evaluator:
    """Lowers and simulates plans of one graph on one machine, each once.

    snapshot    the measurements of the cost model, which plans name
    objective   what plans are ranked by, one of OBJECTIVES; "latency" needs a lowering of forward passes
    """

    def __init__(
        self, lowering: Lowering, cost: CostModel, snapshot: Snapshot | None = None, objective: str = "time"
    ) -> None:
        assert objective in OBJECTIVES and (objective == "latency") <= (lowering.mode == "forward"), objective
        self.lowering, self.cost, self.objective = lowering, cost, objective
        self.cost_snapshot = identity(snapshot)
        self.capacity = lowering.machine.capacity
        self._known: dict[Key, _Known] = {}
        self._refused: dict[Key, TooManyTransfers] = {}
        self._small: dict[Key, bool] = {}
        self._packed: dict[Key, tuple[int, ...]] = {}
        self._busy = BusyTimes(lowering, cost)
        self._short: dict[int, tuple[Lowering, Folding]] = {}
        self._enough: dict[Key, int] = {}
        self._slower: dict[Key, float] = {}
        self._best: tuple[float, Key, SimulatedStep] | None = None
        self._unrolled: tuple[Strategy, int, Unrolled | None] | None = None

    def remade(self, objective: str, most_bytes: int | None = None, lowering: Lowering | None = None) -> Evaluator:
        """An evaluator with the same cost model and another objective, less memory or another lowering.

        most_bytes   a limit of memory on each processor
        lowering     of forward passes, or with other microbatches
        Raises ValueError for an unknown objective, and for one that needs another lowering.
        """
        if objective not in OBJECTIVES:
            hint = suggestion(objective, list(OBJECTIVES))
            raise ValueError(f"no objective {objective!r}{hint}; there are {', '.join(OBJECTIVES)}")
        other = copy(self)
        other.objective, other._best, other._packed = objective, None, {}
        if lowering is not None:
            other.lowering, other._busy, other._known, other._refused = lowering, BusyTimes(lowering, self.cost), {}, {}
            other._small, other._short, other._enough, other._slower, other._unrolled = {}, {}, {}, {}, None
        if (objective == "latency") > (other.lowering.mode == "forward"):
            raise ValueError("objective 'latency' is that of a forward pass: it takes a lowering of mode 'forward'")
        if most_bytes is not None:
            other.capacity = np.minimum(self.capacity, most_bytes)
        return other

    def simulate(self, strategy: Strategy) -> tuple[TaskGraph, Simulated]:
        """The task graph of a plan, with all tasks of all processors, and its simulation."""
        step = self._simulated_whole(strategy)
        return step.tasks, step.simulated

    def _count(self, strategy: Strategy) -> int:
        """The number of microbatches of a plan: 1 for a forward pass."""
        return strategy.microbatches if self.lowering.mode == "train" else 1

    def _key(self, strategy: Strategy) -> Key:
        again, configs = frozenset(strategy.recompute), frozenset(strategy.configs.items())
        return self._count(strategy), strategy.bucket_bytes, strategy.order, strategy.ahead, again, configs

    def is_small(self, strategy: Strategy) -> bool:
        """Whether a plan is small enough to evaluate: on few processors, or with few tasks when folded by role."""
        if self.lowering.machine.num_procs < LARGE:
            return True
        plain = _unordered(strategy)
        key = self._key(plain)
        if key not in self._small:
            folding = self._shortened(strategy, next(repeats.shown(self._count(strategy))))[1]
            is_few = folding.num_tasks(plain) <= MOST_SMALL
            # Without buckets, processors of one role always have the same tasks.
            self._small[key] = is_few and (not strategy.bucket_bytes or folding.by_roles(plain) is not None)
        return self._small[key]

    def _shortened(self, strategy: Strategy, shown: int) -> tuple[Lowering, Folding]:
        """The lowering, and its folding, with `shown` microbatches written out."""
        few = shown if shown < self._count(strategy) else 0
        if few not in self._short:
            lowering = self.lowering.shortened(few) if few else self.lowering
            self._short[few] = lowering, Folding(lowering)
        return self._short[few]

    def tasks(self, strategy: Strategy) -> tuple[TaskGraph, np.ndarray]:
        """The tasks that are simulated for a plan, and int64[T], the number of tasks that each one stands for."""
        step = self._simulated(strategy, self._key(strategy))
        return step.tasks, step.count

    def step_of(self, strategy: Strategy) -> SimulatedStep:
        """A plan's step for reports: all of it; on a large machine, or with too many microbatches, the part that is
        simulated. Raises as `evaluate` does.
        """
        step = self._written_out(strategy)
        return step if step.is_complete or step.is_long or len(step.role) >= LARGE else self._simulated_whole(strategy)

    def evaluate(self, strategy: Strategy) -> Evaluated:
        """Simulate a plan. Raises ValueError where it does not fit graph and machine, or is too large to simulate."""
        found = self.evaluate_within(strategy, inf)
        assert found is not None
        return found

    def evaluate_within(self, strategy: Strategy, most: float) -> Evaluated | None:
        """The same; None where the simulation was ended early because a step takes more than `most` seconds."""
        key = self._key(strategy)
        if key in self._known:
            return self._evaluated(strategy, key)
        if self._slower.get(key, -inf) >= most:
            return None
        # A plan that is too large is evaluated again in other orders and when results are refined.
        if key in self._refused:
            raise self._refused[key]
        try:
            step = self._simulated(strategy, key, most)
        except TooManyTransfers as error:
            self._refused[key] = error.with_traceback(None)
            raise
        except Slower:
            self._slower[key] = most
            return None
        counts = int(step.count.sum()), int(step.count[step.tasks.kind == Kind.COLLECTIVE].sum())
        self._known[key] = _Known(step.seconds, step.peak_bytes, moved_bytes(step.tasks, step.count), *counts)
        found = self._evaluated(strategy, key)
        if self._best is None or found.energy < (1 - WORTH) * self._best[0]:
            self._best = found.energy, key, step
        return found

    def _evaluated(self, strategy: Strategy, key: Key) -> Evaluated:
        known = self._known[key]
        overflow = max(0.0, float((known.peak_bytes / self.capacity).max()) - 1)
        return Evaluated(
            strategy, known.seconds, tuple(known.peak_bytes.tolist()), known.moved_bytes, overflow, self.objective,
            known.num_tasks, known.num_collectives,
        )  # fmt: skip

    def _simulated(self, strategy: Strategy, key: Key, most: float = inf) -> SimulatedStep:
        """Simulate a plan; the step of the best plan so far is cached, or of one that was simulated before, as it will
        be wanted again. Raises Slower as `ordering.simulate_in_order` does.
        """
        if self._best is not None and self._best[1] == key:
            return self._best[2]
        # The number of microbatches that shows the period depends on the plan and its order, seldom on buckets. It is
        # hardly ever smaller than the number of stages, or than with nothing begun ahead.
        count, _, order, ahead, again, configs = key
        alike, *plainer = ((count, 0, o, n, again, configs) for o, n in ((order, ahead), (READY, ahead), (READY, 0)))
        least = self._enough.get(alike) or max(self._least(strategy), *(self._enough.get(one, 0) for one in plainer))
        for shown in repeats.shown(count, least, lambda: self._can_be(self._window(strategy), strategy)):
            step, more = self._simulated_through(shown, strategy, most)
            if more:
                shown += more
                step, _ = self._simulated_through(shown, strategy, most)
            if step is not None:
                break
        assert step is not None, "a step with all microbatches needs no period"
        self._enough[alike] = shown
        if self._best is not None and key in self._known:
            self._best = self._best[0], key, step
        return step

    def _num_tasks(self, shown: int, strategy: Strategy) -> int:
        """About how many tasks there are with `shown` microbatches written out."""
        return self._folded(self._shortened(strategy, NUM_LOWERED)[1], strategy).graph.num_tasks // NUM_LOWERED * shown

    def _can_be(self, shown: int, strategy: Strategy) -> bool:
        """Whether `shown` microbatches can be written out."""
        return self._num_tasks(shown, strategy) <= MOST_TASKS

    def _least(self, strategy: Strategy) -> int:
        """The number of microbatches to write out first."""
        stages = num_stages(strategy, self.lowering.graph.nodes)
        if stages == 1:
            return repeats.LEAST
        if strategy.order != PATH and not strategy.ahead:
            return stages + FILLING
        least, count = IRREGULAR * (stages + FILLING), self._count(strategy)
        # Where half of all microbatches are too few, more than half were never seen to be enough.
        return least if 2 * least <= count else count

    def _simulated_through(self, shown: int, strategy: Strategy, most: float) -> tuple[SimulatedStep | None, int]:
        """The plan simulated with `shown` microbatches written out, None if these show no period that leads to all; and
        how many more would, 0 if that is not known.
        """
        count = self._count(strategy)
        if shown == count:
            return self._in_window(strategy, most) or self._with_all_microbatches(strategy, most), 0
        step = simulate_step(self._written(shown, strategy), strategy, self.cost, most)
        cycle = repeats.cycle(step.folded.graph, step.number, step.simulated)
        if cycle is None:
            return None, 0
        times, rest = divmod(count - shown, cycle.microbatches)
        if rest:
            return None, rest
        each = step.count * repeats.times(count, shown)[step.number]
        return replace(step, count=each, cycle=cycle, times=times).with_lasting, 0

    def _window(self, strategy: Strategy) -> int:
        """How many microbatches are written out where all are simulated: a window of at most half of them, or all."""
        window = 2 * (num_stages(strategy, self.lowering.graph.nodes) + strategy.ahead) + FILLING
        return window if 2 * window <= self._count(strategy) else self._count(strategy)

    def _in_window(self, strategy: Strategy, most: float) -> SimulatedStep | None:
        """The plan with all its microbatches simulated through a window; None where that is not possible."""
        left = self._count(strategy) - self._window(strategy)
        written = self._written(self._window(strategy), strategy) if left else None
        step = written and simulate_step_in_window(written, strategy, self.cost, left, most)
        return step and step.with_lasting

    def _with_all_microbatches(self, strategy: Strategy, most: float = inf) -> SimulatedStep:
        """The same with all of them written out."""
        return simulate_step(self._written(self._count(strategy), strategy), strategy, self.cost, most)

    def _written(self, shown: int, strategy: Strategy) -> WrittenTasks:
        """The tasks of `shown` microbatches; those of the cached step where the plan differs in its order only."""
        best, plain = self._best and self._best[2], _unordered(strategy)
        if best is not None and best.num_microbatches == shown and _unordered(best.strategy) == plain:
            return best.written
        if shown > NUM_LOWERED:
            lowering, folding = self._shortened(strategy, NUM_LOWERED)
            if self._unrolled is None or self._unrolled[:2] != (plain, shown):
                program, folded = lowering.program(strategy), self._folded(folding, strategy)
                if (num_tasks := self._num_tasks(shown, strategy)) > MOST_TASKS:
                    raise TooManyTransfers(MANY.format(num_tasks))
                known = self._unrolled and self._unrolled[2]
                known = known if known is not None and known.differs_only_in_needs(folded) else None
                self._unrolled = None
                self._unrolled = plain, shown, unroll(folded, program, strategy.ahead, shown, known)
            if (found := self._unrolled[2]) is not None:
                return WrittenTasks(lowering, found.folded, found.number, found.alike, found.renamed)
        lowering, folding = self._shortened(strategy, shown)
        folded = self._folded(folding, strategy)
        return WrittenTasks(lowering, folded, repeats.numbers(lowering.program(strategy), folded.graph))

    def _folded(self, folding: Folding, strategy: Strategy) -> Folded:
        """The graph that is simulated for a plan: folded to one processor of each role where there are many."""
        plain = _unordered(strategy)
        folded = folding.fold(plain) if folding.lowering.machine.num_procs >= FOLDED_FROM else folding.whole(plain)
        if not plain.bucket_bytes:
            # The first graph that is folded has the fewest microbatches, with which `is_small` is defined.
            self._small.setdefault(self._key(plain), folded.graph.num_tasks <= MOST_SMALL)
        return folded

    def _written_out(self, strategy: Strategy) -> SimulatedStep:
        """The plan simulated with all its microbatches written out where these are few enough."""
        step = self._simulated(strategy, self._key(strategy))
        is_few = step.left and self._can_be(self._count(strategy), strategy)
        return self._with_all_microbatches(strategy) if is_few else step

    def _simulated_whole(self, strategy: Strategy) -> SimulatedStep:
        """The plan simulated with all tasks of all processors written out."""
        folded = Folding(self.lowering).whole(_unordered(strategy))
        number = repeats.numbers(self.lowering.program(strategy), folded.graph)
        return simulate_step(WrittenTasks(self.lowering, folded, number), strategy, self.cost)

    def pack(self, strategy: Strategy) -> tuple[int, ...]:
        """The bytes of each processor's arena. Raises ValueError, naming the largest owners, where one is too long."""
        key = self._key(strategy)
        if key not in self._packed:
            self._packed[key] = self.packed(self._packable(strategy))
        return self._packed[key]

    def packed(self, step: SimulatedStep) -> tuple[int, ...]:
        """The same of a step that was simulated."""
        # Processors of one role are of one kind, so they have as much memory as the one that stands for them.
        reps = step.folded.representative
        room, lengths = self.capacity[reps], step.peak_bytes[reps]
        # Where more is alive at one time than there is memory, no packing helps.
        lengths = lengths if (lengths > room).any() else self._packing(step, room).peak_bytes
        memory.refuse(step.tasks, step.simulated.timeline, lengths, room, reps.tolist())
        return tuple(lengths[step.role].tolist())

    def arenas(self, strategy: Strategy) -> tuple[int, ...]:
        """The bytes of each processor's arena: as it is packed to fit, or, where it does not, as if there were room."""
        step = self._packable(strategy)
        with suppress(ValueError):
            return self.packed(step)
        return tuple(self._packing(step).peak_bytes[step.role].tolist())

    def _packable(self, strategy: Strategy) -> SimulatedStep:
        """The plan simulated with all its microbatches; on a large machine, or where they are too many, with a few."""
        step = self._written_out(strategy)
        return step if not step.is_short or step.is_long or len(step.role) >= LARGE else self._simulated_whole(strategy)

    def _packing(self, step: SimulatedStep, capacities: np.ndarray | float = np.inf) -> Packing:
        """The packing of the arenas of the processors that were simulated, as far as these have room."""
        reps = step.folded.representative
        more = sum(step.lasting(memory.ALIGNMENT).values(), np.zeros(len(step.role), np.int64))[reps]
        packing = memory.arenas(step.tasks, step.simulated.timeline, capacities - more)
        # The peak may lie between the microbatches of a window that are written out.
        return replace(packing, peak_bytes=np.maximum(packing.peak_bytes + more, step.peak_bytes[reps]))

    def work(self, name: str, config: Config) -> np.ndarray:
        """int64[P]: picoseconds for which a node's kernels keep each processor busy; transfers are not counted."""
        return self._busy.picoseconds(name, config)

    def bound(self, configs: Configs) -> float:
        """A lower bound of the energy of plans in which nodes have these Configs, whatever the other nodes' Configs
        are.

        In seconds, for plans without buckets, in which updates share their overhead; 0 where plans are ranked by
        memory.
        """
        if self.objective == "memory":
            return 0.0
        total = sum((self.work(name, config) for name, config in configs.items()), np.zeros(1, np.int64))
        return float(total.max()) / PICOSECONDS


def _unordered(strategy: Strategy) -> Strategy:
    """The plan without its order, on which lowering does not depend."""
    return msgspec.structs.replace(strategy, order=READY)


def identity(snapshot: Snapshot | None) -> str:
    """A hash of a cost snapshot, "" where nothing was measured."""
    if snapshot is None or not snapshot.rows:
        return ""
    return hashlib.sha256(snapshots.to_json(snapshot)).hexdigest()[:16]

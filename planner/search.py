"""Searching for plans: what a plan is worth, how long to look, and the law that no search ends behind a seed.

It does not know how a search moves through the plans: each is a file of `searches/`, found by its name.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import inf
from pkgutil import iter_modules
from types import ModuleType

import msgspec
import numpy as np

from castile.planner import snapshot as snapshots
from castile.planner.budget import Budget, parse_budget
from castile.planner.cost import CostModel
from castile.planner.frontier import Frontier
from castile.planner.lower import Lowering
from castile.planner.seeds import seeds, stamped
from castile.planner.simulate import Simulated, simulate
from castile.planner.snapshot import Snapshot
from castile.planner.strategy import Config, Predicted, Strategy
from castile.runtime import memory
from castile.runtime.strict import suggestion
from castile.runtime.task import CostKey, TaskGraph
from castile.runtime.timeline import PICOSECONDS

# A plan that needs a hundredth more memory than there is counts as one that takes twice as long.
PENALTY = 100.0
NUM_FINALISTS = 8

# What a search makes small: seconds of a training step, seconds of a forward pass, or bytes of the fullest processor.
OBJECTIVES = ("time", "latency", "memory")

Configs = Mapping[str, Config]


@dataclass(frozen=True)
class Evaluated:
    """What the simulator says of a plan.

    seconds       of a step
    peak_bytes    of each processor: the most that live at one time, which no arena can undercut
    moved_bytes   over links between processors in a step, all together
    overflow      by which share the fullest processor exceeds its memory; 0 where the plan fits
    objective     by what it is ranked: "time", "latency" (seconds both) or "memory"
    """

    strategy: Strategy
    seconds: float
    peak_bytes: tuple[int, ...]
    moved_bytes: int
    overflow: float
    objective: str = "time"

    @property
    def fits(self) -> bool:
        return self.overflow == 0

    @property
    def rank(self) -> tuple[float, ...]:
        """Plans that fit come first, by their objective; then the others, by how much they exceed memory."""
        if self.objective == "memory":
            return (self.overflow, max(self.peak_bytes), self.seconds)
        return (self.overflow, self.seconds, max(self.peak_bytes))

    @property
    def energy(self) -> float:
        """Seconds or bytes, and for a plan that does not fit a penalty that leads back to those that do."""
        worth = max(self.peak_bytes) if self.objective == "memory" else self.seconds
        return worth * (1 + PENALTY * self.overflow)


class Evaluator:
    """Lowers and simulates plans of one graph on one machine, each once.

    snapshot    what the cost model was made with, so that plans can say so
    objective   what plans are ranked by; "latency" takes a lowering of forward passes
    """

    def __init__(
        self, lowering: Lowering, cost: CostModel, snapshot: Snapshot | None = None, objective: str = "time"
    ) -> None:
        assert objective in OBJECTIVES and (objective == "latency") <= (lowering.mode == "forward"), objective
        self.lowering, self.cost, self.objective = lowering, cost, objective
        self.cost_snapshot = identity(snapshot)
        self.capacity = np.array([p.memory_bytes - p.reserved_bytes for p in lowering.machine.processors])
        self._known: dict[tuple[int, frozenset[tuple[str, Config]]], tuple[float, np.ndarray, int]] = {}
        self._work: dict[tuple[str, Config], np.ndarray] = {}

    def turned(self, objective: str, most_bytes: int | None = None, lowering: Lowering | None = None) -> Evaluator:
        """The same prices with plans ranked by another objective, with at most so much memory a processor, or lowered
        otherwise (forward passes, microbatches).

        Raises ValueError for an objective that there is not, or that takes another lowering.
        """
        if objective not in OBJECTIVES:
            hint = suggestion(objective, list(OBJECTIVES))
            raise ValueError(f"no objective {objective!r}{hint}; there are {', '.join(OBJECTIVES)}")
        other = copy(self)
        other.objective = objective
        if lowering is not None:
            other.lowering, other._known, other._work = lowering, {}, {}
        if (objective == "latency") > (other.lowering.mode == "forward"):
            raise ValueError("objective 'latency' is that of a forward pass: it takes a lowering of mode 'forward'")
        if most_bytes is not None:
            other.capacity = np.minimum(self.capacity, most_bytes)
        return other

    def simulate(self, strategy: Strategy) -> tuple[TaskGraph, Simulated]:
        """The tasks of a plan and when they would run, each kernel on its own kind of processor."""
        tasks = self.lowering.lower(strategy)
        timed, durations = self.cost.by_kind(tasks)
        return tasks, simulate(timed, durations, self.lowering.machine.engines)

    def evaluate(self, strategy: Strategy) -> Evaluated:
        """What a plan is worth. Raises ValueError where it is not one for this graph and machine."""
        key = strategy.microbatches, frozenset(strategy.configs.items())
        if key not in self._known:
            tasks, simulated = self.simulate(strategy)
            self._known[key] = simulated.seconds, simulated.peak_bytes, moved_bytes(tasks)
        seconds, peak, moved = self._known[key]
        overflow = max(0.0, float((peak / self.capacity).max()) - 1)
        return Evaluated(strategy, seconds, tuple(peak.tolist()), moved, overflow, self.objective)

    def pack(self, strategy: Strategy) -> tuple[int, ...]:
        """The bytes of each processor's arena. Raises ValueError, naming the largest owners, where one is too long."""
        tasks, simulated = self.simulate(strategy)
        packing = memory.pack(tasks, simulated.timeline)
        memory.refuse(tasks, simulated.timeline, packing, self.capacity.tolist())
        return tuple(packing.peak_bytes.tolist())

    def work(self, name: str, config: Config) -> np.ndarray:
        """int64[P]: picoseconds for which a node's kernels keep each processor busy; transfers are not counted."""
        if (name, config) not in self._work:
            program = self.lowering.program(Strategy({}, self.lowering.microbatches))
            dtypes = {flow.region: flow.dtype for flow in program.flows}.__getitem__
            machine, procs = self.lowering.machine, np.array(config.procs)
            total = np.zeros(machine.num_procs, np.int64)
            for step in program.steps:
                if step.node.name == name:
                    keys, of_part = self.lowering.templates.get(step, config.split, dtypes).keys
                    lasts = np.stack([self.cost.picoseconds(keys, kind) for kind in range(len(machine.kinds))])
                    np.add.at(total, procs, lasts[machine.kind_of[procs], np.repeat(of_part, config.replicas)])
            self._work[name, config] = total
        return self._work[name, config]

    def bound(self, configs: Configs) -> float:
        """The energy below which no plan with these nodes laid out so can be, whatever the other nodes' Configs are.

        Seconds; where plans are ranked by memory 0, of which this knows nothing.
        """
        if self.objective == "memory":
            return 0.0
        total = sum((self.work(name, config) for name, config in configs.items()), np.zeros(1, np.int64))
        return float(total.max()) / PICOSECONDS


def identity(snapshot: Snapshot | None) -> str:
    """A hash of a cost snapshot, "" where nothing was measured."""
    if snapshot is None or not snapshot.rows:
        return ""
    return hashlib.sha256(snapshots.to_json(snapshot)).hexdigest()[:16]


def moved_bytes(tasks: TaskGraph) -> int:
    """The bytes that the transfers of a step bring from one processor to another."""
    counts = np.bincount(tasks.cost, minlength=len(tasks.cost_keys))
    return sum(int(count) * key_moves(key) for count, key in zip(counts, tasks.cost_keys, strict=True))


def key_moves(key: CostKey) -> int:
    """The bytes that one transfer of a cost key moves, over all its members; 0 for kernels."""
    if not key.link:
        return 0
    rounds = 2 if key.name == "all_reduce" else 1
    return rounds * (key.members - 1) * key.nbytes


Progress = Callable[[float, Evaluated], None]


@dataclass
class Run:
    """A search under way: what it may spend, what it has seen, and the best of it.

    seeds      the known plans, evaluated
    frontier   keeps the plans that none beats in both time and memory, where someone asks for them
    num_processes   in how many a search may walk side by side
    spent      the share of the budget that is used up, from 0
    history    (number of proposals, seconds) whenever a better plan was found
    """

    evaluator: Evaluator
    budget: Budget
    rng: random.Random
    seeds: dict[str, Evaluated]
    progress: Progress | None = None
    frontier: Frontier[Evaluated] | None = None
    num_processes: int = 1
    num_proposals: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)
    finalists: list[Evaluated] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        for seed in self.seeds.values():
            self._judge(seed)

    @property
    def lowering(self) -> Lowering:
        return self.evaluator.lowering

    @property
    def best(self) -> Evaluated:
        return self.finalists[0]

    @property
    def elapsed_seconds(self) -> float:
        return time.perf_counter() - self.began

    @property
    def spent(self) -> float:
        if self.budget.proposals is not None:
            return self.num_proposals / self.budget.proposals
        assert self.budget.seconds is not None
        return self.elapsed_seconds / self.budget.seconds

    def propose(self, configs: Configs, most: float = inf) -> Evaluated | None:
        """Evaluate a plan, which costs a proposal; None where a bound shows that its energy is more than `most`."""
        self.num_proposals += 1
        found = None
        if most == inf or self.evaluator.bound(configs) <= most:
            found = self.evaluator.evaluate(Strategy(dict(configs), self.lowering.microbatches))
            self._judge(found)
        if self.progress is not None:
            self.progress(min(1.0, self.spent), self.best)
        return found

    def adopt(self, num_proposals: int, best: Sequence[Evaluated]) -> None:
        """Count proposals that were made elsewhere, and keep the best of them."""
        self.num_proposals += num_proposals
        for found in best:
            self._judge(found)
        if self.progress is not None:
            self.progress(min(1.0, self.spent), self.best)

    def insist(self, configs: Configs) -> Evaluated:
        """A plan that is returned whatever it costs: what a search of a known plan's name ends with."""
        found = self.propose(configs)
        assert found is not None
        return found

    def _judge(self, found: Evaluated) -> None:
        """Keep the plan if it is among the best few; of equal ones the first comes first."""
        if self.frontier is not None:
            self.frontier.add(found)
        if any(found.strategy.configs == known.strategy.configs for known in self.finalists):
            return
        if not self.finalists or found.rank < self.best.rank:
            self.history.append((self.num_proposals, found.seconds))
        self.finalists = sorted([*self.finalists, found], key=lambda e: e.rank)[:NUM_FINALISTS]


@dataclass(frozen=True)
class Found:
    """What a search found.

    strategy           the plan, complete with what it was made for and what is predicted of it
    evaluated          the same as the simulator saw it
    arena_bytes        of each processor, as they will be allocated
    seeds              the known plans, evaluated alike; none that fits is ranked before the plan found
    equals             the seed that the plan is the same as, "" where it is none
    history            (number of proposals, seconds) whenever a better plan was found
    """

    strategy: Strategy
    evaluated: Evaluated
    arena_bytes: tuple[int, ...]
    seeds: dict[str, Evaluated]
    equals: str
    num_proposals: int
    elapsed_seconds: float
    history: tuple[tuple[int, float], ...]


def available() -> tuple[str, ...]:
    """The names of all searches, found by walking the folder."""
    return tuple(sorted(m.name for m in iter_modules(import_module("castile.planner.searches").__path__)))


def find(name: str) -> ModuleType:
    """The search of the file planner/searches/<name>.py. Raises ValueError where there is none."""
    if name not in available():
        hint = suggestion(name, list(available()))
        raise ValueError(f"no search {name!r}{hint}; there are {', '.join(available())}")
    return import_module(f"castile.planner.searches.{name}")


def search(
    name: str,
    evaluator: Evaluator,
    budget: str | Budget = "",
    seed: int = 0,
    progress: Progress | None = None,
    start: Mapping[str, Strategy] | None = None,
    frontier: Frontier[Evaluated] | None = None,
    num_processes: int = 1,
) -> Found:
    """Search for the best plan by the evaluator's objective among those that fit into memory.

    budget     "5000" proposals or "10s"; "" is the search's own. Counted in proposals a search repeats bit for bit.
    progress   told the share of the budget that is spent, and the best plan so far
    start      further plans to start from, by name, which count as seeds
    frontier   is told of every plan that is evaluated
    num_processes   in how many a search may walk side by side, if it can; what it finds is the same
    The plan is never ranked behind data parallelism or another seed that fits, unless the search returns one that it
    insists on. Raises ValueError in one sentence for an unknown search, a budget that is none, and where no plan fits,
    with the largest owners of memory named.
    """
    module = find(name)
    known = {**seeds(evaluator.lowering), **(start or {})}
    worth = {label: evaluator.evaluate(plan) for label, plan in known.items()}
    limits = budget if isinstance(budget, Budget) else parse_budget(budget or module.BUDGET)
    run = Run(evaluator, limits, random.Random(seed), worth, progress, frontier, num_processes)
    insisted = module.search(run)
    best, arena = _choose(run, [insisted] if insisted else [*worth.values(), *run.finalists])
    plan = finished(evaluator, best, arena, name, seed)
    return Found(
        plan, replace(best, strategy=plan), arena, worth, _same(run, best), run.num_proposals, run.elapsed_seconds,
        tuple(run.history),
    )  # fmt: skip


def finished(evaluator: Evaluator, best: Evaluated, arena: tuple[int, ...], name: str, seed: int) -> Strategy:
    """The plan with what it was made for, by which search, and what is predicted of it."""
    # A plan foretells its training step; a forward pass says nothing of that.
    is_step = evaluator.lowering.mode == "train"
    return msgspec.structs.replace(
        stamped(evaluator.lowering, dict(best.strategy.configs), name, seed),
        cost_snapshot=evaluator.cost_snapshot,
        predicted=Predicted(best.seconds, max(arena), best.moved_bytes) if is_step else None,
    )


def _choose(run: Run, candidates: list[Evaluated]) -> tuple[Evaluated, tuple[int, ...]]:
    """The best plan whose arenas fit, and their bytes: live bytes are a bound only, the packer has the last word."""
    refused: ValueError | None = None
    for candidate in sorted(candidates, key=lambda e: e.rank):
        try:
            return candidate, run.evaluator.pack(candidate.strategy)
        except ValueError as error:
            refused = refused or error
    assert refused is not None
    raise ValueError(f"no plan fits; the nearest one: {refused}")


def _same(run: Run, best: Evaluated) -> str:
    """The seed with the same Configs, defaults written out."""
    configs = run.lowering.configs(best.strategy)
    return next((name for name, seed in run.seeds.items() if run.lowering.configs(seed.strategy) == configs), "")

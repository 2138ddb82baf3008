"""Pipeline stages: sets of processors that no node spans, and the order in which they take microbatches.

A plan whose nodes lie on such sets of processors one after the other is a pipeline, and runs one forward, one backward:
1F1B (PipeDream-Flush: Narayanan et al., ICML 2021; DAPPLE: Fan et al., PPoPP 2021). Nothing but its Configs says so.

With 2 stages on 4 microbatches, whose depths are 2 and 1 (`depths`), F forward and B backward:

    stage 0   F0 F1 -- B0 F2 B1 F3 B2 -- B3
    stage 1   -- F0 B0 F1 B1 F2 B2 F3 B3 --

The order is made by edges between tasks (`microbatch_edges`): stage 0 begins F2 only when it is done with B0, 2
microbatches before. It does not know what passes compute, nor when.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, count, groupby
from operator import attrgetter

import numpy as np

from castile.planner.lowering.instances import StepInstance
from castile.planner.lowering.ragged import ranges
from castile.planner.step.program import FETCHED_ANEW
from castile.planner.strategy import Strategy

Procs = Sequence[int]

# Forms of passes with which a stage begins a microbatch, only in its turn; and the turn of all others: none.
BEGIN, NO_TURN = ("F", FETCHED_ANEW), (0, 0)
# Getters in C: large plans have many steps.
_IS_LATE, _COUNT = attrgetter("is_late"), attrgetter("step.micro.count")


def stages(of_nodes: Iterable[Procs]) -> list[int]:
    """The stage of each of these nodes, numbered in order of appearance: nodes that share a processor share a stage."""
    every = list(of_nodes)
    leader: dict[int, int] = {}

    def led(proc: int) -> int:
        while leader.setdefault(proc, proc) != proc:
            leader[proc] = proc = leader[leader[proc]]
        return proc

    for procs in dict.fromkeys(map(tuple, every)):
        for proc in procs:
            leader[led(proc)] = led(procs[0])
    number: dict[int, int] = {}
    return [number.setdefault(led(procs[0]), len(number)) for procs in every]


def num_stages(plan: Strategy, nodes: Iterable[str]) -> int:
    """The number of stages of a plan; 1 where it has no microbatches to fill a pipeline."""
    return 1 + max(stages(plan.configs[name].procs for name in nodes)) if plan.microbatches > 1 else 1


def depths(stage: Sequence[int]) -> list[int]:
    """By stage, how many microbatches it has in flight; stage: of each node, in the order of the program.

    The depth is the number of stages from its first node on to the last: when the first microbatch comes back to it, it
    has begun with these. Each holds its activations until then.
    """
    visits = [number for number, _ in groupby(stage)]
    num_stages = 1 + max(visits, default=-1)
    return [min(num_stages, len(visits) - visits.index(number)) for number in range(num_stages)]


@dataclass(frozen=True, eq=False)
class Rows:
    """S passes with their N tasks, numbered from 0 on, one pass after the other.

    base[S+1]   where the tasks of each pass begin
    procs[N]    the processor of each task
    """

    steps: Sequence[StepInstance]
    base: np.ndarray
    procs: np.ndarray

    def of(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tasks of some passes, bool[S], and the pass that each belongs to."""
        counts = np.diff(self.base)[which]
        return ranges(self.base[:-1][which], counts), np.repeat(np.arange(len(counts)), counts)


@dataclass(frozen=True, eq=False)
class MicrobatchEdges:
    """The edges that make processors take microbatches in turn, in numbers of tasks.

    begun[n, 4]   tasks that begin a microbatch: number, microbatch, processor and depth: they wait for the microbatch
    that many before last[M, P]    by microbatch and processor the last task, -1 where there is none pairs[n, 2]
    further edges: tasks, and what they wait for
    """

    begun: np.ndarray
    last: np.ndarray
    pairs: np.ndarray

    @property
    def edges(self) -> np.ndarray:
        """int64[n, 2]: all tasks that wait, and for which."""
        task, number, proc, most = self.begun[self.begun[:, 1] >= self.begun[:, 3]].T
        return np.append(self.pairs, _pairs(task, self.last[number - most, proc]), axis=0)


NO_TURNS = MicrobatchEdges(np.zeros((0, 4), np.int64), np.zeros((0, 0), np.int64), np.zeros((0, 2), np.int64))


def _pairs(tasks: np.ndarray, before: np.ndarray) -> np.ndarray:
    """int64[n, 2]: tasks and those that they wait for, without those that wait for none (-1)."""
    return np.stack([tasks, before], axis=1)[before >= 0]


def _numbers() -> defaultdict[Hashable, int]:
    """A number for each key, in order of appearance."""
    return defaultdict(count().__next__)


class _Latest:
    """Finds the last task of a kind on a processor before a time; tasks are ascending."""

    def __init__(self, rows: Rows, tasks: np.ndarray, kinds: np.ndarray) -> None:
        self._procs, self._num_procs = rows.procs, int(rows.procs.max(initial=-1)) + 1
        self._size = len(rows.procs) + 1
        self._keys = np.append(np.sort(self._key(tasks, kinds, tasks + 1)), -1)

    def pairs(self, tasks: np.ndarray, kinds: np.ndarray, ends: np.ndarray | int) -> np.ndarray:
        """int64[n, 2]: tasks, and on the processor of each the last one of that kind below its end, if there is one."""
        keys = self._key(tasks, kinds, ends)
        found = self._keys[np.searchsorted(self._keys[:-1], keys, side="right") - 1]
        return _pairs(tasks, np.where(found // self._size == keys // self._size, found % self._size - 1, -1))

    def _key(self, tasks: np.ndarray, kinds: np.ndarray, ends: np.ndarray | int) -> np.ndarray:
        keys: np.ndarray = (kinds * self._num_procs + self._procs[tasks]) * self._size + ends
        return keys


def throttle_edges(rows: Rows, ahead: int = 0) -> np.ndarray:
    """int64[n, 2]: edges (who waits, for which) that keep processors from starting too early.

    ahead   how many microbatches more than its depth a stage may have in flight
    """
    return np.append(_late_edges(rows), microbatch_edges(rows, ahead).edges, axis=0)


def _late_edges(rows: Rows) -> np.ndarray:
    """Makes recomputation, and fetches of one microbatch, wait until their processor is done with the forward passes
    and gradients of activations that stand before them: otherwise they would take memory long before they are read.
    """
    steps, kind = [step.step for step in rows.steps], _numbers()
    is_late = np.fromiter(map(_IS_LATE, steps), np.bool_, len(steps))
    if not is_late.any():
        return np.zeros((0, 2), np.int64)
    kinds = np.array([[kind[form, step.micro] for form in (step.form, "F", "B")] for step in steps])
    (done, of_done), (late, of_late) = rows.of(~is_late), rows.of(is_late)
    latest = _Latest(rows, done, kinds[~is_late][of_done, 0])
    return np.concatenate([latest.pairs(late, wanted, late) for wanted in kinds[is_late][of_late, 1:].T])


def microbatch_edges(rows: Rows, ahead: int = 0) -> MicrobatchEdges:
    """The edges by which processors take microbatches in turn.

    1. A stage begins with a microbatch when it is done with the one that came `depth` before: otherwise the activations
    of all would be live at once. 2. It takes one through its forward passes before the next: otherwise all would go on
    side by side, and none would reach the next stage before all do. 3. Where there are several stages, gradients of
    parameters wait for those of activations, which the stage before waits for (Qi et al., "Zero Bubble Pipeline
    Parallelism", ICLR 2024).
    """
    cut = np.fromiter(map(_COUNT, rows.steps), np.int64, len(rows.steps)) > 1
    if not cut.any():
        return NO_TURNS
    every = list(compress(rows.steps, cut))
    forward, kind = _forward(every), _numbers()
    stage = stages(step.config.procs for step in forward)
    depth = depths(stage)
    place = {step.step.node.name: (depth[number] + ahead, visit) for step, number, visit in _visits(forward, stage)}
    # Parameters are fetched in the turn of the first node that reads them.
    reader = {port.region: step.step.node.name for step in reversed(forward) for port in step.step.inputs}
    fetches = [step.step for step in every if step.step.form == FETCHED_ANEW and step.step.micro.number == 0]
    place |= {fetch.node.name: place[reader[fetch.outputs[0].region]] for fetch in fetches}
    columns = []
    for step in every:
        form, number, (most, visit) = step.step.form, step.step.micro.number, place.get(step.step.node.name, NO_TURN)
        # The kinds of this pass, of forward passes of the microbatch before, and of gradients of activations.
        kinds = kind[form, number, visit], kind["F", number - 1, visit], kind["B", number, visit]
        columns.append((*kinds, number, most, form in BEGIN, form == "W" and len(depth) > 1))
    tasks, of = rows.of(cut)
    mine, before, back, number, most, begun, late = np.array(columns, np.int64).reshape(-1, 7)[of].T
    procs, latest, follows = rows.procs[tasks], _Latest(rows, tasks, mine), np.flatnonzero(begun & (most > 1))
    pairs = latest.pairs(tasks[follows], before[follows], tasks[follows])
    waiting = np.flatnonzero(late)
    pairs = np.append(pairs, latest.pairs(tasks[waiting], back[waiting], len(rows.procs)), axis=0)
    last = np.full((number.max(initial=-1) + 1, procs.max(initial=-1) + 1), -1)
    np.maximum.at(last, (number, procs), tasks)
    return MicrobatchEdges(np.stack([tasks, number, procs, most], axis=1)[begun > 0], last, pairs)


def last_slots(steps: Sequence[StepInstance]) -> list[int]:
    """By slot, the last slot that its pass waits for by `microbatch_edges`, or its own. In a program gradients of
    parameters stand before those of activations, and wait for them where there are several stages.
    """
    if len(set(stages(step.config.procs for step in _forward(steps)))) < 2:
        return [*range(len(steps))]
    last = {step.step.micro: slot for slot, step in enumerate(steps) if step.step.form == "B"}
    return [max(n, last.get(step.step.micro, n)) if step.step.which == "W" else n for n, step in enumerate(steps)]


def _forward(steps: Iterable[StepInstance]) -> list[StepInstance]:
    """The forward steps of the first of several microbatches."""
    micros = [(step, step.step.micro) for step in steps if step.step.form == "F"]
    return [step for step, micro in micros if micro.count > 1 and micro.number == 0]


def _visits(forward: Sequence[StepInstance], stage: Sequence[int]) -> Iterator[tuple[StepInstance, int, int]]:
    """Each forward pass with its stage, and how often the program has moved to another stage before it."""
    visit = 0
    for n, step in enumerate(forward):
        visit += n > 0 and stage[n] != stage[n - 1]
        yield step, stage[n], visit

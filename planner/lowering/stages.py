"""Stages: processors that share no node's pieces with others, and how many microbatches each of them has begun at once.

A plan whose nodes lie on such groups of processors one after the other is a pipeline, and runs one forward, one
backward: 1F1B (PipeDream-Flush: Narayanan et al., ICML 2021; DAPPLE: Fan et al., PPoPP 2021). Nothing but Configs says
so. It does not know what steps compute, nor when.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from castile.planner.lowering.instances import StepInstance
from castile.planner.step.program import Micro
from castile.planner.strategy import Strategy

Procs = Sequence[int]
# A step with its tasks and their processors.
Row = tuple[StepInstance, Iterable[tuple[int, int]]]


def stages(of_nodes: Iterable[Procs]) -> list[int]:
    """The stage of each of these nodes, numbered as they are met: nodes with a processor in common are of one stage."""
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
    """How many stages a plan makes of these nodes; 1 where there are no microbatches to fill a pipeline."""
    return 1 + max(stages(plan.configs[name].procs for name in nodes)) if plan.microbatches > 1 else 1


def depths(stage: Sequence[int]) -> list[int]:
    """By stage, of how many microbatches it computes at once; stage: that of each node in the order of the program.

    As many as there are stages from its first node on to the last: by the time the first one comes back to it, it has
    begun with these. What was begun holds its activations until then.
    """
    visits = [number for number, _ in groupby(stage)]
    num_stages = 1 + max(visits, default=-1)
    return [min(num_stages, len(visits) - visits.index(number)) for number in range(num_stages)]


@dataclass(frozen=True)
class Turns:
    """How processors take microbatches in turn, by the numbers of their tasks.

    begun   of each forward task its number, its microbatch, its processor, and how many microbatches before came the
            one that this must be done with
    last    by microbatch and processor the last task
    pairs   tasks, and what they wait for beside
    """

    begun: Sequence[tuple[int, int, int, int]]
    last: Mapping[tuple[int, int], int]
    pairs: Sequence[tuple[int, int]]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """All tasks that wait, and for what."""
        rows = ((task, self.last.get((number - most, proc))) for task, number, proc, most in self.begun)
        return [*self.pairs, *((task, before) for task, before in rows if before is not None)]


def waits(steps: Iterable[Row], ahead: int = 0) -> np.ndarray:
    """int64[n, 2]: edges by which processors begin in time what they could begin before, those that wait first.

    ahead   so many microbatches more than its depth a stage may have begun at once
    """
    every = list(steps)
    pairs: list[tuple[int, int]] = []
    if any([step.step.again for step, _ in every]):
        every = [(step, list(tasks)) for step, tasks in every]
        pairs += _late(every)
    return np.array(pairs + turns(every, ahead).edges, np.int64).reshape(-1, 2)


def _late(steps: Iterable[Row]) -> Iterator[tuple[int, int]]:
    """What is computed again waits until its processor is done with the forward passes and the gradients of activations
    that come before it: else it would be there, and kept, long before it is read."""
    last: dict[tuple[str, Micro, int], int] = {}
    for step, tasks in steps:
        for task, proc in tasks:
            if not step.step.again:
                last[step.step.which, step.step.micro, proc] = task
                continue
            for which in ("F", "B"):
                if (which, step.step.micro, proc) in last:
                    yield task, last[which, step.step.micro, proc]


def turns(steps: Iterable[Row], ahead: int = 0) -> Turns:
    """By what processors take microbatches in turn.

    A stage begins with a microbatch when it is done with the one that came as many before as it may have begun; else
    the activations of all would be live. And it takes one through its forward passes before the next: else all would
    go on together, and none would come to the next stage before all do. Where there are several stages, gradients of
    parameters wait for those of activations, for which the stage before waits (Qi et al., "Zero Bubble Pipeline
    Parallelism", ICLR 2024).
    """
    every = [row for row in steps if row[0].step.micro.count > 1]
    forward = _forward(step for step, _ in every)
    stage = stages(step.config.procs for step in forward)
    depth, pairs = depths(stage), list[tuple[int, int]]()
    place = {step.step.node.name: (depth[number] + ahead, visit) for step, number, visit in _visits(forward, stage)}
    begun, last = list[tuple[int, int, int, int]](), dict[tuple[int, int], int]()
    through: dict[tuple[str, int, int, int], int] = {}
    waiting: list[tuple[int, tuple[str, int, int, int]]] = []
    for step, tasks in every:
        number, which = step.step.micro.number, step.step.which
        most, visit = place[step.step.node.name]
        for task, proc in tasks:
            if step.step.form == "F":
                begun.append((task, number, proc, most))
                before = through.get(("F", number - 1, proc, visit)) if most > 1 else None
                pairs += [(task, before)] if before is not None else []
            elif which == "W" and len(depth) > 1:
                waiting.append((task, ("B", number, proc, visit)))
            through[step.step.form, number, proc, visit] = last[number, proc] = task
    return Turns(begun, last, pairs + [(task, through[back]) for task, back in waiting if back in through])


def ends(steps: Sequence[StepInstance]) -> list[int]:
    """By slot the last one that its step waits for by `turns`, or its own: gradients of parameters come before those
    of activations in a program, and wait for them where there are several stages."""
    if len(set(stages(step.config.procs for step in _forward(steps)))) < 2:
        return [*range(len(steps))]
    last = {step.step.micro: slot for slot, step in enumerate(steps) if step.step.form == "B"}
    return [max(n, last.get(step.step.micro, n)) if step.step.which == "W" else n for n, step in enumerate(steps)]


def _forward(steps: Iterable[StepInstance]) -> list[StepInstance]:
    """The forward steps of the first of several microbatches."""
    micros = [(step, step.step.micro) for step in steps if step.step.form == "F"]
    return [step for step, micro in micros if micro.count > 1 and micro.number == 0]


def _visits(forward: Sequence[StepInstance], stage: Sequence[int]) -> Iterator[tuple[StepInstance, int, int]]:
    """Each forward step with its stage, and how often the program has changed to another stage before it."""
    visit = 0
    for n, step in enumerate(forward):
        visit += n > 0 and stage[n] != stage[n - 1]
        yield step, stage[n], visit

"""Turns: what waits for nothing is sent one after the other, and what steps send goes between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings

from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.lowering.compose import compose
from castile.runtime import machine
from castile.runtime.task import NUM_LANES, Kind, TaskGraph
from tests.effort import examples
from tests.test_lower import plans, shared
from tests.training import SGD


def waiting_for_nothing(tasks: TaskGraph) -> list[int]:
    """The transfers between processors that need no task."""
    return np.flatnonzero((np.diff(tasks.need_ptr) == 0) & (tasks.kind >= Kind.MOVE)).tolist()


def num_engines(tasks: TaskGraph, task: int, engines: Sequence[int]) -> set[tuple[int, int]]:
    """The engines that serve a task: processor and number of each."""
    return {(lane // NUM_LANES, engines[lane % NUM_LANES]) for lane in tasks.lanes_of(task).tolist()}


@settings(max_examples=examples(200, 1 / 8))
@given(plans() | shared())
def test_of_what_waits_for_nothing_an_engine_has_one(plan) -> None:
    problem, on, strategy = plan
    lowering = Lowering(problem.graph, on, SGD)
    plain = compose(*lowering.instances(strategy), on.num_procs, lowering.catalogue)
    tasks, free = lowering.lower(strategy), waiting_for_nothing(plain)
    engines = [of for t in waiting_for_nothing(tasks) for of in num_engines(tasks, t, on.engines)]
    assert len(engines) == len(set(engines))
    for t in range(tasks.num_tasks):
        more = set(tasks.needs_of(t).tolist()) - set(plain.needs_of(t).tolist())
        assert len(tasks.needs_of(t)) == len(plain.needs_of(t)) + len(more)
        assert not more or (t in free and more <= set(free))
        assert all(tasks.order[before] < tasks.order[t] for before in more)


@settings(max_examples=examples(100, 1 / 8))
@given(plans() | shared())
def test_by_itself_it_is_sent_when_it_would_be_anyway(plan) -> None:
    problem, on, strategy = plan
    lowering = Lowering(problem.graph, on, SGD)
    tasks, served = lowering.lower(strategy), dict[tuple[int, int], int]()
    ends = dict[int, int]()
    plain = compose(*lowering.instances(strategy), on.num_procs, lowering.catalogue)
    for t in sorted(waiting_for_nothing(plain), key=lambda t: plain.order[t]):
        engines = num_engines(tasks, t, on.engines)
        begin = max(served.get(engine, 0) for engine in engines)
        assert begin == max([ends[before] for before in tasks.needs_of(t).tolist()], default=0)
        ends[t] = begin + 1 + int(tasks.cost[t])
        served.update(dict.fromkeys(engines, ends[t]))


def test_sums_of_batch_norm_go_between_parameters_that_are_brought_together() -> None:
    on = machine.parse("flexflow-p100:nodes=1")
    lowering = Lowering(models.parse("resnet:depth=50").graph(16), on, SGD)
    plan = seeds(lowering, ["fsdp"])["fsdp"]
    tasks, simulated = Evaluator(lowering, CostModel(on)).simulate(plan)
    brought = waiting_for_nothing(compose(*lowering.instances(plan), on.num_procs, lowering.catalogue))
    sums = np.setdiff1d(np.flatnonzero(tasks.kind >= Kind.MOVE), brought)
    begin = simulated.timeline.start
    assert begin[sums].min() < begin[brought].max()

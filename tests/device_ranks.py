"""Ranks on stand-ins of GPUs, or on the host: some steps of a plan in one process, and whether they are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from castile.kernels.table import Table
from castile.launch.jobs.execution import Execution, Prepared, feed_from, prepare
from castile.planner import rewrite
from castile.planner.cost import CostModel
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.strategy import ORDERS, Strategy
from castile.runtime.comm.local import LocalWorld
from castile.runtime.comm.processors import rank_of
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.runner import whole_step
from castile.runtime.timeline import Timeline
from castile.runtime.worker import Worker
from tests.strategies import SGD, Problem, batches, beginnings, machines, problems, recomputed, strategies
from tests.training import difference

# what fails is told as it was drawn: to make it smaller takes minutes
SHORT = (Phase.explicit, Phase.generate)
ONE = Machine("one", (Processor("p", 1e9, 1e9, 2**30),), ())
TWO = Machine("two", ONE.processors * 2, (Level("link", 2, 1e-6, 1e9),))


@dataclass(frozen=True)
class Trained:
    """Losses by step, what is carried by region and box (replicas agree), and the workers as they are afterwards."""

    losses: list[float]
    carried: dict[Any, np.ndarray]
    workers: list[Worker]
    prepared: Prepared


class Ranks:
    """The ranks of a plan in one process, which take turns; each uses a device of its own where `places` says so."""

    def __init__(
        self, plan: Plan, backend: str, reach: Callable[[Any], Any] = lambda comm: comm, places: Any = None
    ) -> None:
        self.plan, self._use = plan, places or (lambda rank: None)
        self.prepared = plan.prepared
        ranks = rank_of(plan.machine.num_procs, plan.size)
        self.executions = []
        for comm in LocalWorld(plan.size).communicators:
            self._use(comm.rank)
            procs = [proc for proc, rank in enumerate(ranks) if rank == comm.rank]
            made = Execution(plan.problem.graph, self.prepared, reach(comm), procs, backend=backend, poison=True)
            made.initialise(0, beginnings(plan.problem, exact=False))
            self.executions.append(made)

    def train(self, steps: int, timed: bool = False) -> Trained:
        """Some steps on poisoned memory; where that may be, each is fed and begun while the one before is under way."""
        graph, losses = self.plan.problem.graph, []
        fed = iter(enumerate(batches(self.plan.problem, steps, exact=False)))
        ahead = all(execution.runner.feeds_ahead for execution in self.executions)
        self._feed(fed)
        for step in range(steps):
            for execution in self._turns():
                execution.runner.begin(timed)
                execution.runner.advance()
            if ahead and step + 1 < steps:
                self._feed(fed)
                if not timed:
                    for execution in self._turns():
                        execution.runner.begin_ahead()
            self._run()
            losses += [float(found) for e in self._turns() if (found := e.output(graph.loss)) is not None]
            if timed:
                check_times(self.prepared, [execution.runner.timeline() for execution in self.executions])
            if not ahead and step + 1 < steps:
                self._feed(fed)
        carried: dict[Any, np.ndarray] = {}
        for (region, box, _), values in (item for e in self._turns() for item in e.saved().items()):
            assert np.array_equal(carried.setdefault((region, box), values), values), f"replicas of {region} differ"
        workers = [worker for e in self.executions for worker in e.runner._workers]
        return Trained(losses, carried, workers, self.prepared)

    def _feed(self, fed: Iterator[tuple[int, Any]]) -> None:
        step, arrays = next(fed)
        for execution in self._turns():
            execution.feed(feed_from(arrays), 2**-7, step)

    def _run(self) -> None:
        idle = 0
        while not all(execution.runner.done for execution in self.executions):
            moved = [e.runner.advance() for e in self._turns() if not e.runner.done]
            idle = 0 if any(moved) else idle + 1
            assert idle < 4, "ranks wait for each other"

    def _turns(self) -> Iterator[Execution]:
        for rank, execution in enumerate(self.executions):
            self._use(rank)
            yield execution


def check_times(prepared: Prepared, timelines: list[Timeline]) -> None:
    """Every task has its time, and none begins before what it needs has ended; clocks of ranks agree here."""
    tasks, whole = prepared.tasks, whole_step(timelines)
    assert whole.task.tolist() == list(range(tasks.num_tasks))
    assert (whole.end >= whole.start).all()


def same(found: Trained, host: Trained) -> None:
    """To the last bit."""
    assert found.losses == host.losses
    assert found.carried.keys() == host.carried.keys()
    for key, values in host.carried.items():
        assert np.array_equal(found.carried[key], values), key


def close(found: Trained, host: Trained) -> None:
    """But for the order of sums; what is zero but for rounding counts by the parameter that it moves."""
    assert difference(np.array(found.losses), np.array(host.losses)) < 1e-10
    for (region, box), values in host.carried.items():
        parameter = region.rpartition("/")[0] or region
        moved = max(np.abs(array).max(initial=0) for (name, _), array in host.carried.items() if name == parameter)
        assert difference(found.carried[region, box], values, moved) < 1e-10, region


def on_host(plan: Plan, steps: int) -> Trained:
    """The same with NumPy, by the definitions."""
    with patch("castile.runtime.backends.numpy._table", lambda: Table("reference")):
        return Ranks(plan, "numpy").train(steps)


@dataclass(frozen=True)
class Plan:
    """A graph, how it is cut, the machine, and on how many ranks."""

    problem: Problem
    strategy: Strategy
    machine: Machine
    size: int

    @cached_property
    def prepared(self) -> Prepared:
        """Its step, made once for all ranks that run it, one world of them after the other."""
        lowering = Lowering(self.problem.graph, self.machine, SGD)
        return prepare(lowering, self.strategy, CostModel(self.machine))


@st.composite
def plans(draw: st.DrawFn, each: bool = False, one: bool = False) -> Plan:
    """Of graphs as they are drawn and as any rewrites make them, one after the other or none.

    each: a rank for each processor; one: one rank for all of several
    """
    problem, machine = draw(problems()), draw(machines().filter(lambda m: m.num_procs > one))
    for name in draw(st.lists(st.sampled_from(rewrite.available()), unique=True)):
        problem = Problem(rewrite.apply(name, problem.graph), problem.labels)
    strategy = draw(strategies(problem.graph, machine.num_procs))
    order, again = draw(st.sampled_from(ORDERS)), draw(recomputed(problem.graph))
    strategy = msgspec.structs.replace(strategy, order=order, recompute=again)
    most = 1 if one else machine.num_procs
    return Plan(problem, strategy, machine, most if each else draw(st.integers(1, most)))


def drawn(examples: int) -> Any:
    return settings(
        max_examples=examples, derandomize=True, suppress_health_check=list(HealthCheck), deadline=None, phases=SHORT
    )


def small(dtype: str = "float64") -> Problem:
    graph = Graph("small", dtype)
    x = graph.input("x", (4, 3), "b i")
    for name in ("one", "two", "three"):
        x = graph.linear(name, x, features=3)
    graph.minimise(graph.sum("total", x))
    return Problem(graph, {})

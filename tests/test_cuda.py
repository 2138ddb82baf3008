"""Laws of the backend for GPUs, on a stand-in of CuPy whose streams do their work late and in any order they may.

What they cannot show: that a real device does as the stand-in does, and how long anything takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.kernels.table import Table
from castile.launch.execution import Execution, Prepared, feed_from, prepare
from castile.planner.cost import CostModel
from castile.planner.lower import Lowering
from castile.planner.strategy import Strategy
from castile.runtime.backends import base
from castile.runtime.comm.local import LocalWorld
from castile.runtime.comm.processors import rank_of
from castile.runtime.machine import Machine, Processor
from castile.runtime.runner import run_local, whole_step
from castile.runtime.timeline import Timeline
from castile.runtime.worker import Worker
from tests import stand_in
from tests.strategies import SGD, Problem, batches, beginnings, machines, problems, strategies, whole_on

ONE = Machine("one", (Processor("p", 1e9, 1e9, 2**30),), ())


class LateTable(Table):
    """The definitions, each done when the stream comes to it on which it was bound."""

    def __init__(self, stream: Any) -> None:
        super().__init__("reference")
        self.on_host: set[str] = set()

    def bind(self, name: str, args: Any, outs: Any, params: Any, scratch: Any = None, accumulate: bool = False) -> Any:
        from cupy.cuda import get_current_stream

        there = tuple(arg.on_device if hasattr(arg, "on_device") else arg for arg in args)
        work = super().bind(name, there, tuple(out.on_device for out in outs), params, None, accumulate)
        return partial(get_current_stream().enqueue, work, name, *(out.data for out in outs))


@contextmanager
def device(seed: int = 0) -> Iterator[ModuleType]:
    """A stand-in of CuPy on which the definitions run."""
    with stand_in.installed(seed) as cupy:
        base.load("cuda")
        with patch("castile.runtime.backends.cuda.DeviceTable", LateTable):
            yield cupy


@dataclass(frozen=True)
class Trained:
    """Losses by step, what is carried by region and box (replicas agree), and the workers as they are afterwards."""

    losses: list[float]
    carried: dict[Any, np.ndarray]
    workers: list[Worker]
    prepared: Prepared


def trained(
    problem: Problem, strategy: Strategy, machine: Machine, size: int, backend: str, steps: int, timed: bool = False
) -> Trained:
    """Some steps on poisoned memory, on ranks of one process that take turns."""
    graph = problem.graph
    prepared = prepare(Lowering(graph, machine, SGD), strategy, CostModel(machine))
    ranks = rank_of(machine.num_procs, size)
    executions = []
    for comm in LocalWorld(size).communicators:
        procs = [proc for proc, rank in enumerate(ranks) if rank == comm.rank]
        executions.append(Execution(graph, prepared, comm, procs, backend=backend, poison=True))
        executions[-1].initialise(0, beginnings(problem, exact=False))
    losses = []
    for step, arrays in enumerate(batches(problem, steps, exact=False)):
        for execution in executions:
            execution.feed(feed_from(arrays), 2**-7, step)
        run_local([execution.runner for execution in executions], timed)
        losses += [float(found) for e in executions if (found := e.output(graph.loss)) is not None]
        if timed:
            check_times(prepared, [execution.runner.timeline() for execution in executions])
    carried: dict[Any, np.ndarray] = {}
    for (region, box, _), values in (item for e in executions for item in e.saved().items()):
        assert np.array_equal(carried.setdefault((region, box), values), values), f"replicas of {region} differ"
    return Trained(losses, carried, [worker for e in executions for worker in e.runner._workers], prepared)


def check_times(prepared: Prepared, timelines: list[Timeline]) -> None:
    """Every task has its time, and none begins before what it needs has ended; clocks of ranks agree here."""
    tasks, whole = prepared.tasks, whole_step(timelines)
    assert whole.task.tolist() == list(range(tasks.num_tasks))
    assert (whole.end >= whole.start).all()


def same(a: Trained, b: Trained) -> None:
    assert np.allclose(a.losses, b.losses, 1e-12)
    assert a.carried.keys() == b.carried.keys()
    for key, values in b.carried.items():
        assert np.allclose(a.carried[key], values, 1e-10, 1e-14), key


@st.composite
def plans(draw: st.DrawFn) -> tuple[Problem, Strategy, Machine, int]:
    problem, machine = draw(problems()), draw(machines())
    strategy = draw(strategies(problem.graph, machine.num_procs))
    return problem, strategy, machine, draw(st.integers(1, machine.num_procs))


def drawn(examples: int) -> Any:
    return settings(max_examples=examples, derandomize=True, suppress_health_check=list(HealthCheck), deadline=None)


@drawn(30)
@given(problems(), st.integers(0, 2**16), st.booleans())
def test_one_device_trains_as_the_host_does(problem: Problem, seed: int, timed: bool) -> None:
    plan = problem, whole_on(problem.graph), ONE, 1
    host = trained(*plan, "numpy", 4)
    with device(seed):
        found = trained(*plan, "cuda", 4, timed)
    same(found, host)
    (worker,) = found.workers
    assert worker.uncaptured == "" and (worker._graph is None) == timed


@drawn(30)
@given(plans(), st.integers(0, 2**16), st.booleans())
def test_any_strategy_by_way_of_the_host(plan: Any, seed: int, timed: bool) -> None:
    host = trained(*plan, "numpy", 3)
    with device(seed):
        same(trained(*plan, "cuda", 3, timed), host)

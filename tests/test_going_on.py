"""What one plan leaves any other goes on from: on other processors and ranks, in other microbatches, of a graph that is
rewritten. The steps are those of one device that never stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.kernels.table import Table
from castile.launch.jobs.execution import feed_from, prepare
from castile.launch.typed import optimizers
from castile.planner import rewrite
from castile.planner.cost import CostModel
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.strategy import Strategy
from castile.runtime.comm.local import LocalWorld
from castile.runtime.machine import Machine, local
from castile.runtime.region import slices
from castile.runtime.runner import run_local
from tests.effort import examples
from tests.strategies import Problem, batches, beginnings, in_buckets, in_microbatches, machines, problems, whole_on
from tests.training import apart, difference, gather, start

RATE = 2**-7
NUM_STEPS = 2
TOLERANCE = 1e-9
OPTIMIZERS = ("sgd:momentum=0.5", "adam:eps=0.5", "adafactor:eps1=0.01")
Numbers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Stage:
    """Some steps of a training: a graph, how it is cut, and on how many ranks."""

    graph: Graph
    machine: Machine
    updates: Updates
    plan: Strategy
    size: int

    def run(self, problem: Problem, values: Numbers, first: int, left: Numbers | None) -> tuple[np.ndarray, Numbers]:
        """Losses of the steps from `first` on, and what is carried after them; `left`: after those before."""
        lowering = Lowering(self.graph, self.machine, self.updates)
        prepared = prepare(lowering, self.plan, CostModel(self.machine))
        executions = [start(self.graph, prepared, comm, values) for comm in LocalWorld(self.size).communicators]
        losses = []
        for step, arrays in enumerate(batches(problem, first + NUM_STEPS, exact=False)[first:], first):
            for execution in executions:
                if step == first and left is not None:
                    execution.restore(lambda region, box: left[region][slices(box)])
                execution.feed(feed_from(arrays), RATE, step)
            run_local([execution.runner for execution in executions])
            losses += [float(found) for e in executions if (found := e.output(self.graph.loss)) is not None]
        return np.array(losses), gather(self.graph, executions)


@st.composite
def stages(draw: st.DrawFn, problem: Problem, updates: Updates) -> Stage:
    graph, on = problem.graph, draw(machines())
    for name in draw(st.lists(st.sampled_from(rewrite.available()), unique=True)):
        graph = rewrite.apply(name, graph)
    plan = draw(in_buckets(graph, on.num_procs, updates))
    cut = draw(in_microbatches(plan, 2))
    try:
        Lowering(graph, on, updates).check(cut)
    except ValueError as error:
        assert "microbatches" in str(error), error
        cut = plan
    return Stage(graph, on, updates, draw(st.sampled_from((cut, plan))), draw(st.integers(1, on.num_procs)))


@patch("castile.runtime.backends.numpy._table", lambda: Table("reference"))
def test_any_plan_goes_on_from_what_any_other_left(tell: Callable[[str], None]) -> None:
    seen: Counter[str] = Counter()
    count = examples(24)

    @settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        problem = data.draw(problems(batch=2 * data.draw(st.integers(1, 2)), most_layers=4))
        clip = data.draw(st.sampled_from((None, 1.0)))
        updates = Updates(optimizers.parse(data.draw(st.sampled_from(OPTIMIZERS))), clip)
        values = beginnings(problem, exact=False)
        alone = Stage(problem.graph, local(1), updates, whole_on(problem.graph), 1)
        one, many = None, None
        for first in (0, NUM_STEPS):
            stage = data.draw(stages(problem, updates))
            losses, one = alone.run(problem, values, first, one)
            found, many = stage.run(problem, values, first, many)
            assert difference(found, losses) < TOLERANCE
            assert many.keys() == one.keys()
            for name in one:
                assert apart(many, one, name, RATE) < TOLERANCE, name
            seen.update(stages=1, cut=stage.plan.microbatches > 1, rewritten=bool(stage.graph is not problem.graph))

    check()
    tell(f"going on under another plan: {dict(seen)}")
    assert 6 * min(seen["cut"], seen["rewritten"]) > count, seen

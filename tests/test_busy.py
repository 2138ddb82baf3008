"""Busy times: for how long the kernels of a plan keep each processor at work, node by node."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.known.pipelines import divisors
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.step.recompute import FULL, NOTHING, Recomputation
from castile.planner.strategy import Strategy
from castile.runtime.machine import Machine
from castile.runtime.task import NUM_LANES, Kind
from castile.runtime.timeline import PICOSECONDS
from tests.cut_batches import can_be_cut
from tests.effort import examples
from tests.little import GRAPHS
from tests.strategies import machines, strategies


@settings(max_examples=examples(60))
@given(st.sampled_from(sorted(GRAPHS)), machines(4), st.data())
def test_kernels_of_all_nodes_take_what_their_tasks_do(name: str, on: Machine, data: st.DataObject) -> None:
    """Nodes that are alike share what is known; whatever is computed again, in however many microbatches."""
    graph, updates = GRAPHS[name], Updates(find("sgd")(momentum=0.9))
    again = Recomputation(graph, updates).named(data.draw(st.sampled_from([NOTHING, FULL])))
    count = data.draw(st.sampled_from(divisors(graph.batch)))
    lowering = Lowering(graph, on, updates, microbatches=count, recompute=again)
    drawn = data.draw(strategies(graph, on.num_procs, updates)).configs
    # What is fetched or accumulated apart only where a plan says so is in no bound.
    said = {node: config for node, config in drawn.items() if node in graph.nodes or node.endswith("/update")}
    plan = lowering.plan(lowering.configs(Strategy(said)))
    assume(can_be_cut(lowering, plan))
    evaluator = Evaluator(lowering, CostModel(on))
    tasks, simulated = evaluator.simulate(plan)
    spans = simulated.timeline
    kernels = np.flatnonzero(tasks.kind == Kind.COMPUTE)
    on_lane = tasks.lanes[tasks.lane_ptr[kernels]] // NUM_LANES
    lasts = np.bincount(on_lane, (spans.end - spans.start)[kernels], on.num_procs)
    work = sum(evaluator.work(node, config) for node, config in plan.configs.items())
    assert work.tolist() == lasts.astype(np.int64).tolist()
    assert evaluator.bound(plan.configs) == pytest.approx(max(work) / PICOSECONDS)

"""What a plan promises is what is prepared to run: time, memory and arenas, on machines whose processors differ too."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from castile.launch.jobs.execution import prepare
from castile.launch.measuring.plan_choice import simulated
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.runtime.machine import Machine
from tests.effort import examples
from tests.strategies import in_buckets, machines, problems


@st.composite
def unlike(draw: st.DrawFn) -> Machine:
    """Processors of up to three kinds, of which each is slower than the one before in another respect."""
    on = draw(machines())
    kinds = [
        msgspec.structs.replace(
            on.processors[0], kind=f"p{n}", flops_per_second=1e9 * 3**n, bytes_per_second=1e11 / 7**n
        )
        for n in range(3)
    ]
    return replace(on, processors=tuple(draw(st.sampled_from(kinds)) for _ in on.processors))


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data(), st.sampled_from(("sgd", "adam")), st.sampled_from((None, 1.0)))
def test_what_runs_takes_the_time_and_the_memory_that_were_promised(
    data: st.DataObject, optimizer: str, clip: float | None
) -> None:
    problem, on, updates = data.draw(problems()), data.draw(unlike()), Updates(find(optimizer)(), clip)
    plan = data.draw(in_buckets(problem.graph, on.num_procs, updates))
    cost, evaluator = CostModel(on), Evaluator(Lowering(problem.graph, on, updates), CostModel(on))
    promised, prepared = evaluator.evaluate(plan), prepare(Lowering(problem.graph, on, updates), plan, cost)
    assert prepared.simulated.seconds == promised.seconds == simulated(prepared, cost)
    assert prepared.simulated.peak_bytes.tolist() == list(promised.peak_bytes)
    assert prepared.packing.peak_bytes.tolist() == list(evaluator.pack(plan))

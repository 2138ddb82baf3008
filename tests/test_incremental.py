"""Plans evaluated by what changes in them, against plans lowered and simulated as a whole."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from castile.launch import models
from castile.planner import lower
from castile.planner.choices.space import space_of
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.simulation import incremental
from castile.planner.simulation.incremental import Incremental
from castile.planner.step import beside
from castile.planner.strategy import ORDERS, READY, Config, Strategy
from castile.runtime import machine as machines
from tests.effort import examples
from tests.strategies import SGD, configs, problems, recomputed, strategies
from tests.strategies import machines as drawn_machines


def whole(lowering, cost, strategy):
    """Lowered and simulated from nothing."""
    return Evaluator(lowering, cost).simulate(strategy)[1]


@pytest.fixture(params=[lower.KEPT, 2], ids=["kept", "forgotten"])
def _kept(request, monkeypatch):
    """All that is kept for reuse, or next to nothing, so that it is made anew again and again."""
    for module in (lower, incremental):
        monkeypatch.setattr(module, "KEPT", request.param)


@pytest.mark.usefixtures("_kept")
@settings(max_examples=examples(70, 1 / 7), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_equals_lowering_and_simulating_the_whole_plan(data):
    problem, on = data.draw(problems()), data.draw(drawn_machines())
    lowering, cost = Lowering(problem.graph, on, SGD), CostModel(on)
    names = beside.names(problem.graph, SGD)
    nodes = {**names.nodes, **names.optional}
    sizes, orders = st.sampled_from([0, 0, 0, 256, 2**20]), st.sampled_from([READY, READY, *ORDERS])
    plan = data.draw(strategies(problem.graph, on.num_procs))
    plan = replace(plan, bucket_bytes=data.draw(sizes), order=data.draw(orders))
    plan = replace(plan, recompute=data.draw(st.one_of(st.just(()), recomputed(problem.graph))))
    one = Incremental(lowering, cost, plan, data.draw(st.sampled_from(["auto", "plain"])))
    assert one.seconds == whole(lowering, cost, plan).seconds
    for _ in range(4):
        plan, again = dict(one.strategy.configs), data.draw(st.sampled_from([one.strategy.recompute, ()]))
        for name in data.draw(st.lists(st.sampled_from(sorted(plan)), max_size=3, unique=True)):
            plan[name] = data.draw(configs(nodes[name], on.num_procs))
        if data.draw(st.integers(0, 9)) == 0:
            plan = data.draw(strategies(problem.graph, on.num_procs)).configs
        other = Strategy(plan, bucket_bytes=data.draw(sizes), order=data.draw(orders), recompute=again)
        expected = whole(lowering, cost, other)
        limit = data.draw(st.sampled_from([0.5, 1.0, 2.0])) * expected.seconds
        found = one.propose(other, limit)
        assert found == (expected.seconds if expected.seconds <= limit else None)
        if found is not None and data.draw(st.booleans()):
            one.accept()
            assert one.strategy == other
            assert one.seconds == expected.seconds
            assert one.timeline.start.tolist() == expected.timeline.start.tolist()
            assert one.timeline.end.tolist() == expected.timeline.end.tolist()


def mlp(machine="dgx-h100:nodes=1", batch=64, microbatches=1, updates=SGD):
    on = machines.parse(machine)
    lowering = Lowering(models.parse("mlp").graph(batch), on, updates, microbatches=microbatches)
    return lowering, CostModel(on)


@pytest.mark.parametrize(
    ("microbatches", "updates"), [(1, SGD), (2, SGD), (1, Updates(find("sgd")(momentum=0.9), clip=1.0))]
)
def test_neighbours_of_a_seed(microbatches, updates):
    """Moves of one node after the other from data parallelism on eight processors, some of them made.

    Where gradients are clipped, all updates wait for one factor.
    """
    lowering, cost = mlp(microbatches=microbatches, updates=updates)
    plan = seeds(lowering)["data_parallel"]
    one, rng = Incremental(lowering, cost, plan), random.Random(0)
    for _ in range(20):
        name, node = rng.choice(list(lowering.piece.nodes.items()))
        config = space_of(node, lowering.machine.num_procs).draw(rng)
        plan = Strategy({**one.strategy.configs, name: config}, microbatches)
        expected = whole(lowering, cost, plan)
        assert one.propose(plan) == expected.seconds
        if rng.random() < 0.3:
            one.accept()
            assert one.timeline.start.tolist() == expected.timeline.start.tolist()


def test_what_stays_is_not_lowered_again(monkeypatch):
    """Of a plan that differs in one node, and was lowered before, no other instance is asked for."""
    lowering, cost = mlp()
    plan = seeds(lowering)["data_parallel"]
    one, name = Incremental(lowering, cost, plan), next(iter(lowering.piece.nodes))
    other = Strategy({**plan.configs, name: Config({}, 8, tuple(range(8)))})
    expected = one.propose(other)
    for method in ("_step_instances", "_flow_instances", "configs"):
        monkeypatch.setattr(lowering, method, None)
    assert one.propose(plan) == one.seconds
    assert one.propose(other) == expected


def test_fewer_tasks_are_timed_than_there_are():
    """An early layer computed by all alike moves what follows, on all processors by as much."""
    lowering = Lowering(models.parse("gpt").graph(8), machines.parse("dgx-h100:nodes=1"), SGD)
    plan = seeds(lowering)["data_parallel"]
    one = Incremental(lowering, CostModel(lowering.machine), plan)
    assert one.propose(Strategy({**plan.configs, "block1.k": Config({}, 8, tuple(range(8)))})) > one.seconds
    assert one.num_timed < one.num_tasks / 2


def test_plan_that_does_not_fit_is_refused_in_a_sentence():
    lowering, cost = mlp()
    plan = seeds(lowering)["data_parallel"]
    one = Incremental(lowering, cost, plan)
    name = next(iter(plan.configs))
    with pytest.raises(ValueError, match="processor 99 is out of range"):
        one.propose(Strategy({**plan.configs, name: Config({}, 1, (99,))}))
    with pytest.raises(ValueError, match="no entry for node"):
        one.propose(Strategy({}))
    assert one.propose(plan) == one.seconds

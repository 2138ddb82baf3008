"""Layer-wise plans: of least price among few Configs of each node, all processors used; which searches begin there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner import searches
from castile.planner.bounds.additive import Additive
from castile.planner.bounds.cost_tables import WORK, CostTables
from castile.planner.choices.pins import Pins, parse
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.evaluation.budget import parse_budget
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.searching import layerwise
from castile.planner.searching.layerwise import LEAST_PROPOSALS, NAME, candidate_configs, is_worthwhile, layer_wise_plan
from castile.planner.searching.subsets import pins_within
from castile.planner.strategy import Names
from tests.answers import answer
from tests.effort import examples
from tests.little import GRAPHS, evaluator, machine, tower
from tests.strategies import machines, problems


@settings(max_examples=examples(60))
@given(problems(most_layers=4), machines(4), st.data())
def test_no_plan_among_the_choices_costs_less(problem, on, data):
    """Known plans and drawn ones; each choice is a Config of its node that leaves no processor idle if one can."""
    lowering = Lowering(problem.graph, on)
    model, spaces = Additive(lowering, CostModel(on)), Spaces(lowering, CostModel(on))
    found = candidate_configs(model, spaces)
    for name, configs in found.items():
        assert all(config in spaces[name].configs for config in configs) and len({*configs}) == len(configs)
        assert all({*config.procs} == {*range(on.num_procs)} for config in configs)
    price = model.price(CostTables(model, found).optimum(WORK, WORK))
    plans = [{name: data.draw(st.sampled_from(configs)) for name, configs in found.items()}]
    plans += [plan.configs for plan in seeds(lowering).values()]
    for plan in plans:
        if all(plan[name] in configs for name, configs in found.items()):
            assert price <= model.price(plan)


def test_an_axis_is_cut_as_far_as_it_goes():
    """Two samples and sixteen features of each kind on four processors."""
    lowering = Lowering(tower(1, batch=2), machine(4))
    cost = CostModel(lowering.machine)
    found = candidate_configs(Additive(lowering, cost), Spaces(lowering, cost))
    splits = [(dict(config.split), config.replicas) for config in found["fc0"]]
    assert sorted(splits, key=str) == sorted([({}, 4), ({"b": 2}, 2), ({"i": 4}, 1), ({"o": 4}, 1)], key=str)


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_a_plan_stays_where_it_may(name):
    same = evaluator(GRAPHS[name], machine(4))
    few = pins_within(same, (2, 3))
    (plan,) = layer_wise_plan(same, few).values()
    assert {proc for config in plan.configs.values() for proc in config.procs} == {2, 3}
    node = next(iter(same.lowering.piece.nodes))
    names = Names(same.lowering.piece.nodes, same.lowering.names.optional)
    pin = Pins([parse(f"{node}: {{b: 4}}")], names, 4)
    (plan,) = layer_wise_plan(same, pin).values()
    assert plan.configs[node].split == {"b": 4}


def test_there_is_none_without_time_or_room():
    graph = GRAPHS["two"]
    assert layer_wise_plan(evaluator(graph, machine(2)), is_over=lambda: True) == {}
    assert layer_wise_plan(evaluator(graph, machine(2, memory=64))) == {}
    assert [*layer_wise_plan(evaluator(graph, machine(2)))] == [NAME]


def test_who_begins_there():
    """Searches that say that they walk, also a user's own, for long enough, for time."""
    same = evaluator(GRAPHS["two"], machine(2))
    long = parse_budget(f"{LEAST_PROPOSALS}")
    walking = {name for name in (*searches.available(), "data_parallel") if is_worthwhile(same, name, long)}
    assert walking == {"mcmc", "tempering"} and is_worthwhile(same, "mcmc", parse_budget("1s"))
    assert not is_worthwhile(same, "mcmc", parse_budget(f"{LEAST_PROPOSALS - 1}"))
    for name, does_walk in (("walks.py", True), ("jumps.py", False)):
        searches.register(name, searches.Registered(len, "10", does_walk))
        assert is_worthwhile(same, name, long) == does_walk
    small = Evaluator(same.lowering, same.cost, objective="memory")
    assert not is_worthwhile(small, "mcmc", long)


def test_a_command_tells_of_it_where_its_search_begins_there(capsys, monkeypatch):
    monkeypatch.setattr(layerwise, "LEAST_PROPOSALS", 20)
    words = ["plan", "mlp", "--machine", "local:procs=2", "--budget"]
    for more, is_told in ((["20"], True), (["19"], False), (["20", "--seeds", "data_parallel"], False)):
        assert (NAME in answer(capsys, *words, *more)["seeds"]) == is_told

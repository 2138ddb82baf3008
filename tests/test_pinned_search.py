"""Searches with pins and chosen seeds: what is pinned holds for all that any of them looks at."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.launch import models
from castile.planner.choices.moves import Moves
from castile.planner.choices.pins import Pins, parse, without
from castile.planner.choices.space import space_of
from castile.planner.choices.spaces import Spaces
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.search import search
from castile.planner.searches import find
from castile.planner.searching.fronts import search_front
from castile.planner.strategy import Config, Names, Strategy, check_config, encode
from castile.runtime.machine import Machine
from castile.runtime.task import NUM_LANES, Kind
from tests import strategies as drawn
from tests.effort import rare
from tests.little import GRAPHS, SEARCHES, evaluator, machine, two_layers
from tests.test_pins import drawn_pins

PINNED = (("fc: {o: 2}",), ("loss: {procs: 1-2}", "fc: {i: 1}"), ("fc: {replicas: 2}",), ("fc.weight/update: {o: 3}",))


def pins(lowering: Lowering, *texts: str, frozen: str = "") -> Pins:
    num_procs = lowering.machine.num_procs
    found = [parse(text) for text in texts] + ([without(frozen, num_procs)] if frozen else [])
    return Pins(found, Names(lowering.piece.nodes, lowering.names.optional), num_procs)


@pytest.fixture
def looked_at(monkeypatch) -> list[dict[str, Config]]:
    """Every plan that is evaluated."""
    seen, evaluate = [], Evaluator.evaluate

    def watch(self, strategy):
        seen.append(strategy.configs)
        return evaluate(self, strategy)

    monkeypatch.setattr(Evaluator, "evaluate", watch)
    return seen


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize(("texts", "frozen"), [*((texts, "") for texts in PINNED), ((), "1"), (("fc: {b: 2}",), "0")])
def test_whatever_is_looked_at_has_what_is_pinned(name, texts, frozen, looked_at):
    same = evaluator(GRAPHS["one"], machine(3))
    pinned = pins(same.lowering, *texts, frozen=frozen)
    budget = "" if name == "exhaustive" else "25"
    found = search(name, same, budget, pins=pinned)
    assert pinned.meets(found.strategy.configs) and looked_at and all(map(pinned.meets, looked_at))
    assert all(pinned.meets(seed.strategy.configs) for seed in found.seeds.values())
    is_insisted = found.num_proposals == 1
    assert is_insisted or all(found.evaluated.rank <= seed.rank for seed in found.seeds.values())


@settings(max_examples=50)
@given(st.data())
def test_a_space_holds_what_is_pinned_and_nothing_else(data):
    graph, num_procs = data.draw(drawn.problems(most_layers=3)).graph, 4
    same = evaluator(graph, machine(num_procs), drawn.SGD)
    free, pinned = Spaces(same.lowering, same.cost), data.draw(drawn_pins(graph, num_procs))
    bound = Spaces(same.lowering, same.cost, pinned)
    assert set(bound) == set(free) == {*same.lowering.names.nodes, *same.lowering.names.optional}
    for name, node in bound.nodes.items():
        space = bound[name]
        assert len(space) == len(set(space.configs)) > 0
        for config in space.configs:
            check_config(node, config, num_procs)
            assert pinned.allows(name, config)
        # All that meets the pins and would be there without them is there still.
        assert {c for c in free[name].configs if pinned.allows(name, c)} <= set(space.configs)
        if pinned.need(name) is None:
            assert space is free[name] is space_of(node, num_procs)


@settings(max_examples=30)
@given(st.data(), st.integers(0, 10**6))
def test_moves_keep_to_what_is_pinned(data, seed):
    graph = data.draw(drawn.problems(most_layers=3)).graph
    same = evaluator(graph, machine(4), drawn.SGD)
    pinned, rng = data.draw(drawn_pins(graph, 4)), random.Random(seed)
    moves = Moves.of(same.lowering, Spaces(same.lowering, same.cost, pinned))
    plan = pinned.apply(rng.choice(list(seeds(same.lowering).values())).configs)
    for _ in range(15):
        plan = moves.change(plan, rng)
        assert pinned.meets(plan)
        for name, config in plan.items():
            check_config(moves.nodes[name], config, 4)
    same.lowering.lower(Strategy(plan))


def busy(same: Evaluator, plan: Strategy) -> set[int]:
    """The processors that run kernels."""
    tasks = same.simulate(plan)[0]
    first = tasks.lanes[tasks.lane_ptr[:-1]] // NUM_LANES
    return set(first[tasks.kind == Kind.COMPUTE].tolist())


@pytest.mark.parametrize("frozen", ["0", "1,3", *rare("2", "0-1")])
def test_frozen_processors_run_no_kernel(frozen):
    same = evaluator(two_layers(), machine(4))
    found = search("mcmc", same, "80", pins=pins(same.lowering, frozen=frozen))
    left = set(range(4)) - {int(p) for p in frozen.replace("-", ",").split(",")}
    assert busy(same, found.strategy) <= left
    assert busy(same, found.seeds["data_parallel"].strategy) == left
    assert busy(same, search("data_parallel", same).strategy) == {0, 1, 2, 3}


def test_a_pin_costs_only_what_it_must():
    """A plan that has what is pinned already is found under pins too."""
    same = evaluator(GRAPHS["residual"], machine(4))
    best = search("mcmc", same, "300")
    config = best.strategy.configs["sum"]
    text = f"sum: {{{', '.join(f'{axis}: {n}' for axis, n in config.split.items())}, replicas: {config.replicas}}}"
    again = search("mcmc", same, "1", start={"best": best.strategy}, pins=pins(same.lowering, text.replace("{, ", "{")))
    assert again.evaluated.seconds == best.evaluated.seconds


def test_processes_keep_to_pins_too():
    same = evaluator(GRAPHS["two"], machine(3))
    pinned = pins(same.lowering, "up: {o: 2}", frozen="1")
    found = [search("tempering", same, "60", 2, num_processes=count, pins=pinned) for count in (1, 2)]
    assert encode(found[0].strategy) == encode(found[1].strategy) and pinned.meets(found[0].strategy.configs)


@pytest.mark.parametrize("objective", ["time", "latency", "memory"])
@pytest.mark.parametrize("model", ["convnet", *rare("gpt:layers=1,width=32,heads=4,seq=8,vocab=64")])
def test_a_front_of_any_objective_keeps_to_pins_and_seeds(model, objective):
    graph, mode = models.parse(model).graph(8), "forward" if objective == "latency" else "train"
    lowering = Lowering(graph, machine(4, memory=2**31), mode=mode)
    same = evaluator(graph, lowering.machine).remade(objective, lowering=lowering)
    loss = graph.outputs[0]
    pinned = pins(lowering, f"{loss}: {{b: 2}}", frozen="3")
    found, points = search_front("mcmc", same, "35", seeds=["data_parallel", "fsdp"], pins=pinned)
    assert points and set(found.seeds) <= {"data_parallel", "fsdp"}
    assert all(pinned.meets(plan.configs) for plan in (found.strategy, *(point.strategy for point in points)))


# Which known plans count.


def test_only_the_seeds_that_are_named_are_started_from(monkeypatch):
    same = evaluator(two_layers(batch=8, width=16), machine(4))
    started = {}
    monkeypatch.setattr(find("random", same.lowering), "search", lambda run: started.update(run.seeds))
    for names in (["megatron"], ["data_parallel"], ["one_processor", "megatron"]):
        started.clear()
        found = search("random", same, "1", seeds=names)
        assert set(started) == set(names) and set(found.seeds) == {"data_parallel", *names}
        assert found.evaluated.rank == min(seed.rank for seed in found.seeds.values())
    started.clear()
    search("random", same, "1")
    assert set(started) == set(seeds(same.lowering)) > {"data_parallel", "megatron"}
    started.clear()
    mine = {"mine": seeds(same.lowering)["fsdp"]}
    search("random", same, "1", start=mine, seeds=[])
    assert set(started) == {"mine"}
    started.clear()
    search("random", same, "1", seeds=[])
    assert set(started) == {"data_parallel"}


def test_a_seed_that_is_another_may_be_named():
    same = evaluator(GRAPHS["one"], machine(2))
    assert "megatron" not in seeds(same.lowering)
    found = search("mcmc", same, "3", seeds=["megatron"])
    assert found.seeds["megatron"].strategy.configs == found.seeds["data_parallel"].strategy.configs


def test_a_seed_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match=r"no known plan 'megatrn' \(did you mean 'megatron'\?\); there are data_"):
        search("mcmc", evaluator(GRAPHS["one"], machine(2)), seeds=["megatrn"])


def test_where_nothing_fits_with_the_pins_they_are_named():
    graph: Graph = two_layers(width=64)
    roomy = evaluator(graph, machine(4))
    pinned = pins(roomy.lowering, frozen="1-3")
    most = max(search("mcmc", roomy, "100", pins=pinned, seeds=["data_parallel"]).arena_bytes)
    tight: Machine = machine(4, memory=most // 2)
    same = evaluator(graph, tight)
    assert search("mcmc", same, "200").evaluated.fits
    with pytest.raises(ValueError, match="no plan fits with what is pinned; the nearest one: processor 0 needs"):
        search("mcmc", same, "20", pins=pins(same.lowering, frozen="1-3"))

"""Unequal processors get unequal shares: as their speeds say, never behind equal ones, and with the same results."""

import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner.bounds.lower_bound import lower_bound
from castile.planner.choices import shares
from castile.planner.choices.moves import Moves
from castile.planner.choices.space import space_of
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.graph import Graph
from castile.planner.known.plans import balanced, data_parallel
from castile.planner.known.seeds import seed, seeds
from castile.planner.lower import Lowering
from castile.planner.search import search
from castile.planner.strategy import Config, Strategy, check_config
from castile.runtime import machine as machines
from castile.runtime.machine import Level, Machine, Processor
from tests import strategies as drawn
from tests.effort import examples
from tests.little import GRAPHS, SEARCHES, evaluator, machine, two_layers
from tests.training import difference, train

TWO_KINDS = """
[[processor]]
kind = "slow"
count = 2
flops_per_second = 1e9
bytes_per_second = 1e10
memory_bytes = 1_000_000_000

[[processor]]
kind = "fast"
count = 2
flops_per_second = 3e9
bytes_per_second = 3e10
memory_bytes = 1_000_000_000

[[level]]
name = "wire"
latency_seconds = 1e-6
bytes_per_second = 1e10
"""


@pytest.fixture
def two_kinds(tmp_path: Path) -> Machine:
    """Two slow processors and two that are three times as fast."""
    (tmp_path / "two_kinds.toml").write_text(TWO_KINDS)
    return machines.parse(str(tmp_path / "two_kinds.toml"))


def of_speeds(*speeds: float) -> Machine:
    procs = tuple(Processor(f"x{s:g}", 1e8 * s, 1e9 * s, 2**30, task_overhead_seconds=1e-7 / s) for s in speeds)
    return Machine("speeds", procs, (Level("link", len(procs), 1e-7, 1e10),) if len(procs) > 1 else ())


def network(batch: int = 64) -> Graph:
    g = Graph("network", "float32")
    x, y = g.input("x", (batch, 64), "b i"), g.input("label", (batch,), "b", "int32")
    for n in range(2):
        x = g.relu(f"act{n}", g.linear(f"fc{n}", x, features=64))
    g.minimise(g.cross_entropy("loss", g.linear("head", x, features=8), y))
    g.outputs = ["head"]
    return g


some_speeds = st.lists(st.sampled_from((0.1, 0.25, 0.4, 0.5, 1.0)), min_size=2, max_size=4)


@pytest.mark.parametrize("microbatches", [1, 2, 3, 12])
def test_every_microbatch_counts_in_how_fast_processors_are(two_kinds: Machine, microbatches: int) -> None:
    """Though two are written out: what is done once a step has as little weight as it has."""
    lowering, cost = Lowering(two_layers(batch=12), two_kinds, microbatches=microbatches), CostModel(two_kinds)
    program = lowering.program(lowering.plan({}))
    keys = [lowering.templates.get(step, {}, program.dtypes.__getitem__).does.keys for step in program.steps]
    lasts = [sum(int(cost.picoseconds(key, kind)[part].sum()) for key, part in keys) for kind in two_kinds.kind_of]
    assert shares.speeds(lowering, cost) == tuple(min(lasts) / one for one in lasts)


@given(some_speeds)
def test_parts_are_spread_so_that_the_last_is_done_first(speeds):
    found, last = shares.spread(speeds), np.inf
    assert bool(found) == (len(set(speeds)) > 1)
    for num_parts, procs in found.items():
        assert len(procs) == num_parts <= shares.MOST_PARTS_A_PROC * len(speeds) and list(procs) == sorted(procs)
        lasts = max(procs.count(p) / speed for p, speed in enumerate(speeds)) / num_parts
        assert lasts < last
        last = lasts
        if num_parts <= 6:
            every = product(range(num_parts + 1), repeat=len(speeds))
            best = min(max(c / s for c, s in zip(of, speeds)) for of in every if sum(of) == num_parts)
            assert lasts == pytest.approx(best / num_parts)
    # What is left to gain on any number of parts is little.
    if found:
        assert last <= 1.35 / sum(speeds)


@settings(max_examples=examples(100))
@given(some_speeds)
def test_speeds_are_those_of_the_kernels(speeds):
    on = of_speeds(*speeds)
    found = shares.speeds(Lowering(GRAPHS["two"], on), CostModel(on))
    assert found == pytest.approx([speed / max(speeds) for speed in speeds], rel=1e-3)


@settings(max_examples=40)
@given(st.data(), some_speeds)
def test_spaces_of_unequal_processors_hold_shares_too(data, speeds):
    graph, on = data.draw(drawn.problems(most_layers=3)).graph, of_speeds(*speeds)
    same = evaluator(graph, on, drawn.SGD)
    spaces, spread = Spaces(same.lowering, same.cost), shares.spread(shares.speeds(same.lowering, same.cost))
    for name, node in spaces.nodes.items():
        plain, configs = space_of(node, on.num_procs).configs, spaces[name].configs
        assert set(plain) <= set(configs) and len(configs) == len(set(configs))
        for config in set(configs) - set(plain):
            check_config(node, config, on.num_procs)
            assert config.procs == spread[config.num_parts] and config.replicas == 1
        assert max(config.num_parts for config in configs) <= spaces.most_parts
    for name, config in balanced(same.lowering).items():
        assert config in spaces[name].configs or config.num_parts == 1


@settings(max_examples=25)
@given(some_speeds, st.integers(0, 10**6))
def test_moves_between_unequal_processors_are_legal(speeds, seed):
    same, rng = evaluator(GRAPHS["residual"], of_speeds(*speeds)), random.Random(seed)
    moves = Moves.of(same.lowering, Spaces(same.lowering, same.cost))
    plan = dict(balanced(same.lowering))
    for _ in range(10):
        plan = moves.change(plan, rng)
        for name, config in plan.items():
            check_config(moves.nodes[name], config, len(speeds))
    same.lowering.lower(Strategy(plan))


@pytest.mark.parametrize("name", SEARCHES)
def test_no_search_ends_behind_shares(name):
    same = evaluator(GRAPHS["one"], of_speeds(0.5, 1.0))
    found = search(name, same, "" if name == "exhaustive" else "20")
    assert "balanced" in found.seeds
    is_insisted = found.num_proposals == 1
    assert is_insisted or all(found.evaluated.rank <= known.rank for known in found.seeds.values())


@pytest.mark.parametrize("procs", [1, 2, 4])
def test_equal_processors_get_equal_shares(procs):
    same = evaluator(network(), machine(procs))
    assert balanced(same.lowering) == data_parallel(same.lowering.piece, procs)
    assert "balanced" not in seeds(same.lowering) and search("balanced", same).equals == "data_parallel"


def test_what_does_with_few_processors_takes_the_fastest(two_kinds):
    known = seeds(Lowering(network(), two_kinds))
    assert known["one_processor"].configs["fc0"] == Config({}, 1, (2,))
    assert known["data_parallel_2"].configs["fc0"] == Config({"b": 2}, 1, (2, 3))
    assert known["data_parallel"].configs["fc0"] == Config({"b": 4}, 1, (0, 1, 2, 3))


def test_where_links_are_slow_the_slow_processors_are_left_out(two_kinds):
    far = replace(two_kinds, levels=(Level("wire", 4, 1e-4, 3e7),))
    same = Evaluator(Lowering(network(256), far), CostModel(far))
    found = search("mcmc", same, "100")
    assert {p for name in same.lowering.graph.nodes for p in found.strategy.configs[name].procs} == {2, 3}


def work(same: Evaluator, plan: Strategy) -> np.ndarray:
    """Of each processor its shares of all nodes that are cut along the samples."""
    total = np.zeros(same.lowering.machine.num_procs)
    for config in plan.configs.values():
        if "b" in config.split:
            np.add.at(total, list(config.procs), 1 / len(config.procs))
    return total


def test_fast_processors_do_more_and_the_step_is_shorter(two_kinds):
    same = Evaluator(Lowering(network(1024), two_kinds), CostModel(two_kinds))
    found = search("mcmc", same, "150")
    equal, shared = found.seeds["data_parallel"], found.seeds["balanced"]
    assert shared.strategy.configs["fc0"] == Config({"b": 8}, 1, (0, 1, 2, 2, 2, 3, 3, 3))
    assert found.evaluated.seconds <= shared.seconds < 0.7 * equal.seconds
    done = work(same, found.strategy)
    assert done[2:].min() > 2 * done[:2].max()
    assert search("balanced", same).equals == "balanced"
    # What says that no plan is shorter has to know that there may be more parts than processors.
    bound = lower_bound(same, Spaces(same.lowering, same.cost).most_parts)
    assert bound is not None and bound.seconds <= found.evaluated.seconds


def test_shares_train_as_one_processor_does(two_kinds):
    graph = two_layers(batch=12)
    problem = drawn.Problem(graph, {"label": 4})
    data, values = drawn.batches(problem, 2, exact=False), drawn.beginnings(problem, exact=False)
    plan = Strategy(seed("balanced", Lowering(graph, two_kinds)))
    assert plan.configs["up"].procs == (0, 1, 2, 2, 2, 3, 3, 3)
    one = train(graph, drawn.whole_on(graph), two_kinds, data, values)
    for size in (1, 3):
        many = train(graph, plan, two_kinds, data, values, size=size)
        assert difference(many.losses, one.losses) < 1e-10
        for name, expected in one.carried.items():
            moved = np.abs(one.carried[name.rpartition("/")[0] or name]).max()
            assert difference(many.carried[name], expected, moved) < 1e-10, name

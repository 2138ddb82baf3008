"""Heads: attention is found by what it does, and known plans cut it along heads where all else is cut along positions:
what it takes goes from each to each, once."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest

from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.graph import Graph
from castile.planner.known.heads import heads
from castile.planner.known.megatron import TensorCuts
from castile.planner.known.plans import MOST_PASSED, context_parallel, head_widths, ulysses
from castile.planner.known.seeds import known_names, seeds
from castile.planner.lower import Lowering
from castile.planner.search import Evaluator, search
from castile.planner.strategy import Config, Strategy, check_config
from castile.runtime import machine
from castile.runtime.task import Kind
from tests.effort import rare
from tests.named_plans import links
from tests.one_device import on_one_and_many
from tests.strategies import Problem
from tests.training import SGD, apart, difference

BLOCK = "gpt:layers=1,width=16,vocab=16"
LITTLE = f"{BLOCK},heads=4,seq=8"


def written_out(batch: int = 1, places: int = 8) -> Graph:
    """Attention as a product, a mask, a softmax and a product."""
    g = Graph("written", "float64")
    x = g.input("x", (batch, places, 6), "b s i")
    mask = g.input("mask", (places, places), "s t")
    q, keys, values = (
        g.transpose(f"{n}.heads", g.linear(n, x, features=8), f"b {p} (h d) -> b h {p} d", h=4)
        for n, p in (("q", "s"), ("keys", "t"), ("values", "t"))
    )
    scores = g.contract("scores", "b h s d, b h t d -> b h s t", q, keys)
    weights = g.softmax("weights", g.add("masked", g.scale("scaled", scores, factor=0.5), mask))
    made = g.contract("made", "b h s t, b h t d -> b h s d", weights, values)
    y = g.linear("out", g.transpose("joined", g.relu("relu", made), "b h s d -> b s (h d)"), features=3)
    g.minimise(g.sum("loss", y))
    g.outputs = ["out"]
    return g


@pytest.mark.parametrize("name", models.available())
def test_what_attends_by_several_heads_is_found_in_every_model(name: str) -> None:
    graph = models.parse(name).graph(4)
    attending = {n.name: "h" for n in graph.nodes.values() if n.op.name == "attention" and n.alignment.extents["h"] > 1}
    assert heads(graph) == attending
    lowering = Lowering(graph, machine.parse("dgx-h100"))
    assert attending or not any("ulysses" in known for known in known_names(lowering))


def test_between_two_products_all_is_cut_along_the_same_heads() -> None:
    """And nothing before the first or behind the last, nor what looks up no positions of others."""
    found = heads(written_out())
    assert found == dict.fromkeys(("scores", "scaled", "masked", "weights", "made"), "h")


@pytest.mark.parametrize(
    ("num_heads", "samples", "procs", "near", "widths"),
    [
        (8, 1, 8, 8, [8]), (8, 2, 8, 8, [4]), (8, 8, 8, 8, []), (1, 1, 8, 8, []),
        # As many as there are; and those that are near.
        (8, 1, 32, 4, [8, 4]), (64, 1, 32, 8, [32, 8]), (64, 4, 32, 16, [8]), (64, 3, 8, 8, [2]),
        # None has much more to do than others: 12 heads are not cut in 8, 25 in 5 and nearly so in 4.
        (12, 1, 8, 8, [4]), (25, 1, 8, 8, [4]), (25, 1, 10, 5, [5]), (3, 1, 8, 8, []),
        # Nor is any processor without one.
        (7, 1, 8, 8, [4]), (14, 1, 15, 15, [5]),
    ],
)  # fmt: skip
def test_heads_are_cut_evenly_among_those_who_share_samples(
    num_heads: int, samples: int, procs: int, near: int, widths: list[int]
) -> None:
    graph = models.parse(f"gpt:layers=1,width={2 * num_heads},heads={num_heads},seq=64").graph(samples)
    assert head_widths(TensorCuts(graph), procs, near) == widths


def test_heads_lie_within_groups_and_positions_across() -> None:
    everyone = tuple(range(8))
    wide = ulysses(TensorCuts(models.parse(LITTLE).graph(1)), 4, 4)
    assert wide["block1.attention"] == Config({"h": 4}, 1, (0, 1, 2, 3))
    assert {c for name, c in wide.items() if name != "block1.attention"} == {Config({"s": 4}, 1, (0, 1, 2, 3))}
    shared = ulysses(TensorCuts(models.parse(LITTLE).graph(2)), 8, 4)
    assert shared["block1.attention"] == Config({"b": 2, "h": 4}, 1, everyone)
    assert shared["block1.q"] == shared["block1.norm1"] == Config({"b": 2, "s": 4}, 1, everyone)
    # Four heads for eight: half of the positions each, four ways.
    few = ulysses(TensorCuts(models.parse(LITTLE).graph(1)), 8, 4)
    assert few["block1.attention"] == Config({"s": 2, "h": 4}, 1, everyone)
    assert few["block1.q"] == Config({"s": 8}, 1, everyone)
    # Of queries that share keys no more parts than heads of keys.
    grouped = TensorCuts(models.parse(f"{LITTLE},kv_heads=2").graph(1))
    assert head_widths(grouped, 8, 8) == [2]
    assert ulysses(grouped, 8, 2)["block1.attention"] == Config({"s": 4, "h": 2}, 1, everyone)


def test_the_plans_are_known_where_positions_are_cut() -> None:
    def known(samples: int, microbatches: int = 1) -> set[str]:
        on = machine.parse("dgx-h100:nodes=2")
        graph = models.parse("gpt:layers=1,width=32,heads=16,seq=64").graph(samples)
        return {n for n in known_names(Lowering(graph, on, microbatches=microbatches)) if "ulysses" in n}

    whole = {"ulysses", "ulysses_zero", "ulysses_8", "ulysses_8_zero"}
    # A stage has a node or less.
    stages = {f"pipeline_{n}{way}_ulysses" for n in (2, 4) for way in ("", "_interleaved")}
    assert known(1) == whole and known(4, 4) == whole | stages
    assert known(4) == {"ulysses", "ulysses_zero"} and not known(16)


@pytest.mark.parametrize("procs", [16, 128, 1024])
@pytest.mark.parametrize("width", [2, 8])
def test_positions_are_cut_no_further_than_messages_allow(procs: int, width: int) -> None:
    graph = models.parse("gpt:layers=1,width=16,heads=8,vocab=16,seq=65536").graph(1)
    configs = ulysses(TensorCuts(graph), procs, width)
    for name, config in configs.items():
        check_config(graph.nodes[name], config, procs)
    groups = len({*configs["block1.attention"].procs}) // width
    assert groups == min(procs // width, MOST_PASSED // procs) and len({*configs["block1.q"].procs}) == groups * width


def test_what_attention_takes_and_makes_goes_from_each_to_each_once() -> None:
    """And no key one by one."""
    graph, on = models.parse(LITTLE).graph(1), links(4)
    known = Evaluator(Lowering(graph, on, SGD), CostModel(on))
    tasks, _ = known.simulate(seeds(known.lowering, ["ulysses"])["ulysses"])
    sent = Counter(tasks.cost_keys[cost].name for cost in tasks.cost if tasks.cost_keys[cost].link)
    # Queries, keys, values and what is made of them, and the gradient of each.
    assert sent["all_to_all"] == 8 and not any(task.kind == Kind.MOVE for task in tasks.tasks), sent


@pytest.mark.parametrize(
    ("settings", "samples", "nodes", "name"),
    [
        ("heads=4,seq=8", 2, 1, "ulysses"), ("heads=4,seq=8,kv_heads=2,rotary=true", 1, 2, "ulysses"),
        ("heads=4,seq=8", 2, 2, "pipeline_2_ulysses"),
        *rare(
            ("heads=4,seq=8", 1, 1, "ulysses"), ("heads=4,seq=8", 1, 1, "ulysses_zero"),
            ("heads=4,seq=8", 1, 2, "ulysses"), ("heads=4,seq=64", 1, 2, "ulysses_zero"),
            ("heads=8,seq=8", 1, 2, "ulysses_4"),
        ),
    ],
)  # fmt: skip
def test_a_plan_that_cuts_attention_along_heads_trains_as_one_device(
    settings: str, samples: int, nodes: int, name: str
) -> None:
    graph = models.parse(f"{BLOCK},{settings}").graph(samples, "float64")
    on = machine.parse(f"flexflow-p100:nodes={nodes}")
    lowering = Lowering(graph, on, SGD, microbatches=2 if name.startswith("pipeline") else 1)
    plan = seeds(lowering, [name])[name]
    strategy = Strategy(plan.configs, plan.microbatches)
    assert strategy.configs["block1.attention"].degree("h") > 1 == strategy.configs["block1.q"].degree("o")
    problem = Problem(graph, {"tokens": 16, "targets": 16})
    (losses, carried), many = on_one_and_many(problem, on, strategy, on.num_procs, steps=2, exact=False, rate=0.1)
    assert difference(many.losses, losses) < 1e-12
    for param in carried:
        assert apart(many.carried, carried, param) < 1e-10, param


def test_attention_that_is_written_out_trains_as_one_device_along_heads() -> None:
    graph, on = written_out(), machine.parse("flexflow-p100:nodes=1")
    strategy = Strategy(seeds(Lowering(graph, on, SGD), ["ulysses"])["ulysses"].configs)
    assert strategy.configs["weights"] == Config({"h": 4}, 1, (0, 1, 2, 3))
    (losses, carried), many = on_one_and_many(Problem(graph, {}), on, strategy, 4, steps=2, exact=False, rate=0.1)
    assert difference(many.losses, losses) < 1e-12
    for param in carried:
        assert apart(many.carried, carried, param) < 1e-10, param


@pytest.mark.parametrize("positions", [16384, *rare(65536)])
def test_of_long_texts_the_planner_finds_what_heads_take_or_better(positions: int) -> None:
    """Where heads suffice attention along them takes less than along positions, and less than Megatron's pairs."""
    on = machine.parse("dgx-h100:nodes=4")
    graph = models.parse(f"gpt:layers=4,width=4096,heads=32,vocab=50257,seq={positions}").graph(1, "bfloat16")
    known = Evaluator(Lowering(graph, on, SGD), CostModel(on))
    cuts = TensorCuts(graph)
    plans = ulysses(cuts, 32, 32), context_parallel(cuts, 32)
    by_hand, along = (known.evaluate(known.lowering.plan(configs)) for configs in plans)
    assert by_hand.seconds < along.seconds < 2 * by_hand.seconds
    found = search("mcmc", known, "1")
    assert found.evaluated.seconds <= by_hand.seconds
    attending = found.strategy.configs["block2.attention"]
    assert attending.degree("h") == 32 and prod(attending.split.values()) == 32

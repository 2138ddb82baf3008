"""Experts: found wherever a matrix is one of several, and known plans that lay them apart send tokens and no sums."""

from __future__ import annotations

import pytest

from castile.launch import models
from castile.planner.cost import CostModel
from castile.planner.graph import Graph
from castile.planner.known.experts import experts
from castile.planner.known.megatron import TensorCuts
from castile.planner.known.plans import expert_parallel
from castile.planner.known.seeds import known_names, seeds
from castile.planner.lower import Lowering
from castile.planner.op import Init
from castile.planner.search import Evaluator
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine
from castile.runtime.task import Kind
from tests.effort import rare
from tests.named_plans import links
from tests.one_device import on_one_and_many
from tests.strategies import Problem
from tests.training import SGD, apart, difference

MOE = "moe:layers=2,width=8,heads=2,hidden=16,seq=4,vocab=16,experts=4"


def grouped(batch: int) -> Graph:
    """Three groups with matrices and biases of their own, and a scale that all groups share."""
    g = Graph("grouped", "float32")
    x = g.input("x", (batch, 3, 4), "b g i")
    init = Init("normal", 0.5)
    m = g.contract("mix", "b g i, g i o -> b g o", x, g.param("mix.weight", (3, 4, 5), ("g", "i", "o"), init))
    m = g.contract("out", "b g o, o p -> b g p", g.relu("relu", m), g.param("out.weight", (5, 2), ("o", "p"), init))
    g.minimise(g.sum("loss", m))
    g.outputs = ["out"]
    return g


def test_experts_are_found_with_what_lies_between_them() -> None:
    found = experts(models.parse(MOE).graph(4))
    assert found == {"block2.up": "e", "block2.gelu": "e", "block2.down": "e"}
    # Of a matrix that all groups share each would hold all.
    assert experts(grouped(4)) == {"mix": "g", "relu": "g"}


@pytest.mark.parametrize("name", ["gpt", "bert", "dlrm", "convnet", "resnet:depth=18", "resnext", "lstm", "xdl"])
def test_where_there_are_none_no_plan_has_them(name: str) -> None:
    lowering = Lowering(models.parse(name).graph(8), machine.parse("flexflow-p100:nodes=2"))
    assert experts(lowering.graph) == {} and not any("expert" in known for known in known_names(lowering))


def test_experts_lie_on_as_many_neighbours_as_divide_them_and_samples_across() -> None:
    cuts = TensorCuts(models.parse(MOE).graph(8))
    wide, narrow = (expert_parallel(cuts, 8, width) for width in (8, 2))
    assert wide["block2.up"] == Config({"e": 4, "b": 2}, 1, (0, 4, 1, 5, 2, 6, 3, 7))
    assert narrow["block2.gelu"] == Config({"e": 2, "b": 4}, 1, (0, 2, 4, 6, 1, 3, 5, 7))
    assert wide["block1.up"] == wide["block2.dispatch"] == Config({"b": 8}, 1, tuple(range(8)))
    # Two samples are too few for eight processors: positions are cut too.
    few = expert_parallel(TensorCuts(models.parse(MOE).graph(2)), 8, 8)
    assert few["block1.up"] == Config({"b": 2, "s": 4}, 1, tuple(range(8))) and few["block2.up"].degree("e") == 4
    lowering = Lowering(models.parse(MOE).graph(8), machine.parse("dgx-h100:nodes=2"), microbatches=4)
    names = {"expert_parallel", "expert_parallel_zero", "expert_parallel_8", "expert_parallel_8_zero"}
    pipelines = {f"pipeline_{n}{way}_expert_parallel" for n in (2, 4) for way in ("", "_interleaved")}
    assert {name for name in known_names(lowering) if "expert" in name} == names | pipelines


def test_tokens_come_and_go_and_no_gradient_of_an_expert_is_sent() -> None:
    graph, on = models.parse(MOE).graph(8), links(4)
    known = Evaluator(Lowering(graph, on, SGD), CostModel(on))
    plan = seeds(known.lowering, ["expert_parallel"])["expert_parallel"]
    tasks, _ = known.simulate(plan)
    sent = [task for task in tasks.tasks if task.kind in (Kind.MOVE, Kind.COLLECTIVE)]
    assert not [task for task in sent if any(f"block2.{part}.weight" in str(task.name) for part in ("up", "down"))]
    # To the experts and back, forward and backward.
    assert sum(tasks.cost_keys[task].name == "all_to_all" for task in tasks.cost) == 4


PLANS = ("expert_parallel_zero", "megatron_2", "pipeline_2_interleaved_expert_parallel", *rare("expert_parallel"))


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_with_experts_apart_trains_as_one_device(name: str) -> None:
    graph, on = models.parse(MOE).graph(16, "float64"), machine.parse("flexflow-p100:nodes=2")
    lowering = Lowering(graph, on, SGD, microbatches=2 if name.startswith("pipeline") else 1)
    plan = seeds(lowering, [name])[name]
    assert any(axis == "e" for config in plan.configs.values() for axis in config.split)
    strategy = Strategy(plan.configs, plan.microbatches)
    problem = Problem(graph, {"tokens": 16, "targets": 16})
    (losses, carried), many = on_one_and_many(problem, on, strategy, on.num_procs, steps=2, exact=False, rate=0.1)
    assert difference(many.losses, losses) < 1e-12
    for name in carried:
        assert apart(many.carried, carried, name) < 1e-10, name

"""Sketches of forward passes say what brings outputs to the host, which may take longer than making them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.stats import kendalltau

from castile.launch import models
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.search import search
from castile.planner.sketch.sketch import Sketch
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine as machines
from tests.test_sketch import LARGE, MACHINES, assert_same, capacity, kept_by, shaken, walked

GPT = "gpt:layers=1,width=64,heads=2,seq=64,vocab=8192"
BATCHES = LARGE | {GPT: 8}


def made(
    model: str, machine: str, more: tuple[str, ...] = ()
) -> tuple[Sketch, Evaluator, dict[str, dict[str, Config]]]:
    """A sketch of forward passes to a model's outputs and more, what simulates them, and the known plans."""
    on, graph = machines.parse(machine), models.parse(model).graph(BATCHES[model])
    graph.outputs += more
    lowering = Lowering(graph, on, Updates(find("sgd")()), "forward")
    evaluator = Evaluator(lowering, CostModel(on), objective="latency")
    every = seeds(lowering, None, evaluator.cost).items()
    known = {name: {n: plan.configs[n] for n in lowering.piece.nodes} for name, plan in every}
    spaces = Spaces(lowering, evaluator.cost)
    return Sketch(lowering, evaluator.cost, spaces, list(known.values())), evaluator, known


@pytest.mark.parametrize("model", LARGE)
@pytest.mark.parametrize("machine", MACHINES)
def test_known_plans_of_forward_passes_take_what_they_take_when_simulated(model: str, machine: str) -> None:
    sketch, evaluator, known = made(model, machine)
    exact = [evaluator.evaluate(Strategy(plan)).seconds for plan in known.values()]
    ratios = np.array([sketch.seconds(plan) for plan in known.values()]) / exact
    # As found: 0.87 (a LSTM's head cut by classes, whose pieces the host puts together) to 1.01; 0.15 to 1.01 where
    # outputs were free wherever they lay.
    assert ratios.min() > 0.85 and ratios.max() < 1.03, dict(zip(known, ratios, strict=True))
    assert np.median(np.abs(ratios - 1)) < 0.06


@pytest.mark.parametrize("model", [model for model in LARGE if model.startswith(("gpt", "moe", "lstm"))])
def test_plans_of_forward_passes_rank_as_when_they_are_simulated(model: str) -> None:
    sketch, evaluator, known = made(model, MACHINES[1])
    rng = random.Random(3)
    plans = [*known.values(), *(shaken(sketch, known["data_parallel"], rng, 2) for _ in range(20))]
    rough = np.array([sketch.seconds(plan) for plan in plans])
    exact = np.array([evaluator.evaluate(Strategy(plan)).seconds for plan in plans])
    assert kendalltau(rough, exact).statistic > 0.6 and np.median(np.abs(rough / exact - 1)) < 0.1


@pytest.mark.parametrize("machine", MACHINES)
def test_what_the_host_reads_takes_what_one_message_of_it_takes(machine: str) -> None:
    """Where one processor makes it all another one's results are as much later as they take to come."""
    sketch, _, known = made(GPT, machine)
    here = known["one_processor"]
    there = {name: Config(procs=(1,)) for name in here}
    links, (logits,) = sketch.links, [flow for flow in sketch._draft._program.flows if flow.role == "output"]
    nbytes = 4 * np.prod(logits.shape)
    sent = links.latency[0] + nbytes * links.per_byte[0]
    assert sketch.seconds(there) - sketch.seconds(here) == pytest.approx(sent, rel=0.01)
    held = sketch.room.held.copy()
    sketch.seconds(here)
    assert sketch.room.held[0] - sketch.room.held[1] == nbytes == held[0]


def test_what_is_made_early_is_sent_while_others_compute() -> None:
    """Two outputs, the first of which is there long before the other: it costs nothing but where links are busy."""
    (few, _, known), (more, evaluator, _) = (made(GPT, MACHINES[1], outputs) for outputs in ((), ("embed",)))
    plan = {name: Config(procs=(1,)) for name in known["one_processor"]}
    assert few.seconds(plan) == pytest.approx(more.seconds(plan), rel=0.01)
    assert more.seconds(plan) == pytest.approx(evaluator.evaluate(Strategy(plan)).seconds, rel=0.02)
    assert len(more.program.node) == len(few.program.node) + 2


def test_walks_of_forward_passes_end_with_what_their_plans_take() -> None:
    sketch, _, known = made(GPT, MACHINES[1])
    start = known["data_parallel"]
    found = walked(sketch, start, 1500, 0.1)
    assert found.energy == pytest.approx(sketch.seconds(found.plan), rel=1e-9) and found.plan.keys() == start.keys()
    plan, draws = sketch.number(start), np.random.default_rng(0).random((2000, 12))
    sketch.walk(plan, draws, np.full(len(draws), 0.1), capacity(sketch))
    kept = kept_by(sketch)
    sketch.seconds(sketch.configs(plan))
    assert_same(kept, kept_by(sketch))


def test_searches_through_sketches_find_what_dynamic_programming_finds() -> None:
    _, evaluator, _ = made(GPT, MACHINES[1])
    walks, exact = (search(name, evaluator) for name in ("mcmc", "dynamic"))
    assert walks.evaluated.seconds <= 1.01 * exact.evaluated.seconds

"""Sketches of plans in microbatches say what all microbatches take, as tightly as those of a whole batch."""

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
from castile.planner.known.pieces import in_pieces
from castile.planner.known.seeds import PIPELINE, seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.sketch.sketch import Sketch
from castile.planner.sketch.sketched_plans import SketchedPlans
from castile.planner.strategy import Config, Strategy
from castile.runtime import machine as machines
from tests.effort import rare
from tests.test_sketch import LARGE, assert_same, capacity, kept_by, shaken, walked

MODELS = [model for model in LARGE if model.startswith(("mlp", "alexnet", "gpt"))]

SMALL = (
    "mlp",
    "alexnet",
    "candle_uno",
    "vit:layers=2,width=64,heads=2",
    "gpt:layers=2,width=64,heads=2,seq=64,vocab=256",
)


def made(
    model: str, microbatches: int, machine: str = "flexflow-p100:nodes=2", piped: bool = False
) -> tuple[Sketch, Evaluator]:
    on = machines.parse(machine)
    graph = models.parse(model).graph(LARGE[model])
    lowering = Lowering(graph, on, Updates(find("sgd")(momentum=0.9)), microbatches=microbatches)
    evaluator = Evaluator(lowering, CostModel(on))
    known = list(known_of(lowering, piped).values())
    return Sketch(lowering, evaluator.cost, Spaces(lowering, evaluator.cost), known), evaluator


def known_of(lowering: Lowering, piped: bool) -> dict[str, dict[str, Config]]:
    """Known plans of which a sketch sees all, pipelines among them or not."""
    every = {name: dict(plan.configs) for name, plan in seeds(lowering).items()}
    seen = {name: plan for name, plan in every.items() if len(plan) == len(lowering.piece.nodes)}
    return {name: plan for name, plan in seen.items() if piped or not name.startswith(PIPELINE)}


@pytest.mark.parametrize("model", [model for model in MODELS if model != "alexnet" or rare(model)])
def test_plans_rank_as_when_all_microbatches_are_simulated(model: str) -> None:
    taus, near = [], []
    for count in (1, 2, 8):
        (sketch, evaluator), rng = made(model, count), random.Random(3)
        known = list(known_of(evaluator.lowering, piped=False).values())
        plans = [*known, *(shaken(sketch, dict(plan), rng, 3) for plan in known for _ in range(2))]
        rough, num_stages = np.array([(sketch.seconds(plan), sketch.room.num_stages[0]) for plan in plans]).T
        exact = np.array([evaluator.evaluate(Strategy(plan, count)).seconds for plan in plans])
        taus.append(kendalltau(rough, exact).statistic)
        # Of some of what chance makes, pipelines, another test says how far off it is.
        near.append(float((np.abs(rough / exact - 1)[num_stages == 1] < 0.1).mean()))
    # As found: tau 0.85 to 0.93, and 67 to 80 of 100 plans a tenth off at most; of a whole batch the same.
    assert min(taus[1:]) > taus[0] - 0.1 and min(near[1:]) > near[0] - 0.1, (taus, near)


@pytest.mark.parametrize("model", MODELS)
def test_pipelines_rank_among_known_plans_as_when_they_are_simulated(model: str) -> None:
    sketch, evaluator = made(model, 8, piped=True)
    ratios, rough, exact = [], [], []
    for name, plan in known_of(evaluator.lowering, piped=True).items():
        rough.append(sketch.seconds(plan))
        found = evaluator.evaluate(Strategy(plan, 8))
        exact.append(found.seconds)
        if sketch.room.num_stages[0] > 1:
            # Stretches that take unlike times hold each other up in ways that are not known: 1.15, of alexnet.
            ratios.append(rough[-1] / exact[-1] / (1.1 if "_interleaved" in name else 1.0))
            # As found: 0.26 to 1.11, the least of the mlp, of whose plans in one stage it is from 0.36 on.
            assert 0.2 < sketch.held.max() / max(found.peak_bytes) < 1.2, name
    assert len(ratios) >= 4 and kendalltau(rough, exact).statistic > 0.7
    # What cuts matrices within stages, too, it takes for quicker than it is.
    assert min(ratios) > 0.6 and max(ratios) < 1.1 and np.median(np.abs(np.log(ratios))) < 0.3, ratios


def test_what_stages_sum_last_keeps_nothing_of_what_they_send_within() -> None:
    graph = models.parse("gpt:layers=8,width=2048,heads=16,seq=1024,vocab=8192").graph(8)
    on = machines.parse("dgx-h100:nodes=8")
    lowering = Lowering(graph, on, Updates(find("sgd")(momentum=0.9)), microbatches=4)
    evaluator = Evaluator(lowering, CostModel(on))
    plan = dict(seeds(lowering, ["pipeline_4_megatron_8"])["pipeline_4_megatron_8"].configs)
    sketch = Sketch(lowering, evaluator.cost, Spaces(lowering, evaluator.cost), [plan])
    # Where sums between nodes were sent as gradients came, gathers within them waited: it was 1.22.
    assert 0.7 < sketch.seconds(plan) / evaluator.evaluate(Strategy(plan, 4)).seconds < 1.1


@pytest.mark.parametrize("model", MODELS)
def test_what_a_walk_keeps_is_what_its_plan_takes_from_the_beginning(model: str) -> None:
    sketch, evaluator = made(model, 4)
    start = dict(seeds(evaluator.lowering)["data_parallel"].configs)
    found = walked(sketch, start, 1500, 0.1)
    assert found.energy == pytest.approx(sketch.seconds(found.plan), rel=1e-9)
    plan = sketch.number(start)
    sketch.walk(plan, np.random.default_rng(0).random((1000, 12)), np.full(1000, 0.3), capacity(sketch))
    kept = kept_by(sketch)
    sketch.seconds(sketch.configs(plan))
    assert_same(kept, kept_by(sketch))


def test_what_is_kept_is_of_one_microbatch_and_gradients_are_whole() -> None:
    for count in (2, 16):
        sketch, evaluator = made(MODELS[-1], count, "dgx-h100")
        megatron = seeds(evaluator.lowering)["megatron"].configs
        for plan, is_cut in ((megatron, False), (in_pieces(evaluator.lowering, dict(megatron)), True)):
            sketch.update(is_cut)
            sketch.seconds({name: plan[name] for name in sketch.names})
            share = sketch.held.max() / max(evaluator.evaluate(Strategy(plan, count)).peak_bytes)
            # As found: 0.78 to 0.93.
            assert 0.7 < share < 1.05, (count, is_cut, share)


@pytest.mark.parametrize("model", SMALL)
def test_what_the_host_gives_to_all_microbatches_is_held(model: str) -> None:
    on = machines.parse("flexflow-p100:nodes=1")
    # Where it lies for 15 others it outweighs what else is there of most; each more takes longer to simulate.
    for count in (16, *rare(128)) if model == "candle_uno" else (16,):
        lowering = Lowering(models.parse(model).graph(1024), on, Updates(find("sgd")(momentum=0.9)), microbatches=count)
        evaluator = Evaluator(lowering, CostModel(on))
        known = seeds(lowering)
        sieve = SketchedPlans(evaluator, known, Spaces(lowering, evaluator.cost))
        for name, configs in sieve.configs.items():
            sieve.sketch.update(name in sieve.in_pieces)
            sieve.sketch.seconds(configs)
            share = sieve.sketch.held.max() / max(evaluator.evaluate(known[name]).peak_bytes)
            # As found: 0.76 to 1.0; of pipelines, of which a processor holds as many microbatches as there are
            # stages where it is one of the last too, up to 1.41.
            assert 0.7 < share < (1.5 if name.startswith(PIPELINE) else 1.05), (name, count, share)

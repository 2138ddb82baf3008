"""Larger budgets: ten times the proposals find nothing that is slower, but for what cannot be told from noise."""

from __future__ import annotations

import json

import msgspec
import pytest

from castile.launch import models
from castile.launch.__main__ import main
from castile.launch.typed import optimizers
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.evaluation.sizes import SIZES, variants
from castile.planner.families.updates import Updates
from castile.planner.lower import Lowering
from castile.planner.search import search
from castile.planner.searching.refinement import FINALIST_SLOWDOWN, refine
from castile.planner.strategy import ORDERS
from castile.runtime import machine as machines
from tests.effort import rare

NOISE = 0.01
# Of drawn cases those in which what a tenth of the budget finds was 1.5 to 8 per cent faster.
CASES = (
    ("gpt:layers=2,width=128,heads=4,seq=32,vocab=2000", "dgx-h100:nodes=1", 2),
    ("gpt:layers=4,width=64,heads=4,seq=32,vocab=256", "flexflow-p100:nodes=1", 16),
    ("resnet", "flexflow-k80:nodes=1", 16),
    ("resnet", "dgx-h100:nodes=1", 64),
)
# One of them, where ten times as much is not the question; all four say the same.
LONG = [CASES[1], *rare(CASES[0], *CASES[2:])]


@pytest.mark.parametrize(("model", "on", "batch"), LONG)
def test_ten_times_the_proposals_find_nothing_slower(model: str, on: str, batch: int, capsys) -> None:
    def planned(budget: int) -> float:
        words = ["plan", model, "--machine", on, "--batch", str(batch), "--budget", str(budget), "--json"]
        assert main(words) == 0
        return json.loads(capsys.readouterr().out)["found"]["step_seconds"]

    assert planned(200_000) <= (1 + NOISE) * planned(20_000)


@pytest.mark.parametrize(("model", "on", "batch"), [*CASES[:2], *rare(*CASES[2:])])
def test_what_came_near_is_tried_as_the_best_is(model: str, on: str, batch: int) -> None:
    """So what is taken may have been behind, and nothing that came near is better as the best of all others is."""
    lowering = Lowering(models.parse(model).graph(batch), machines.parse(on), Updates(optimizers.parse("adamw")))
    same = Evaluator(lowering, CostModel(lowering.machine))
    found = search("mcmc", same, "20000", sizes=SIZES)
    others = [found.evaluated, *found.seeds.values()]
    ways = [way for one in others for way in variants(same, one.strategy, SIZES, orders=ORDERS)]
    before = min(ways, key=lambda one: one.rank)
    taken = refine(same, found).evaluated
    near = [one.strategy for one in found.finalists if one.energy <= FINALIST_SLOWDOWN * found.evaluated.energy]
    assert len(near) > 2 and taken.rank <= before.rank
    assert taken.seconds < before.seconds or batch > 2, "what is taken was behind others"
    for plan in near:
        size, order = before.strategy.bucket_bytes, before.strategy.order
        other = msgspec.structs.replace(plan, bucket_bytes=size, order=order)
        assert taken.rank <= same.evaluate(other).rank

"""Known plans through a sketch: those left out are behind what a search finds, and what is asked for stays."""

from __future__ import annotations

import pytest

from castile.launch import models
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.evaluation.budget import Budget
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.search import search
from castile.planner.searches import mcmc
from castile.planner.sketch import sketched_plans
from castile.planner.strategy import encode
from castile.runtime import machine as machines
from tests.effort import rare

# Where messages' latencies rule, of which sketches know least.
SMALL = {
    "mlp": 64,
    "lenet": 64,
    "gpt:layers=2,width=64,heads=4,seq=32,vocab=256": 16,
    "lstm:layers=1,width=32,seq=4,vocab=64": 32,
}
LARGE = "gpt:layers=2,width=1024,heads=16,seq=256,vocab=8192"
LONG = "1000"


def lowered(model: str, samples: int, machine: str) -> tuple[Lowering, CostModel]:
    on = machines.parse(machine)
    return Lowering(models.parse(model).graph(samples), on, Updates(find("sgd")(momentum=0.9))), CostModel(on)


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("machine", ["flexflow-k80:nodes=1", *rare("dgx-h100:nodes=1")])
def test_a_search_through_sketches_ends_behind_no_known_plan(model: str, machine: str) -> None:
    lowering, cost = lowered(model, SMALL[model], machine)
    found, fresh = search("mcmc", Evaluator(lowering, cost), LONG), Evaluator(lowering, cost)
    for name, plan in seeds(lowering, cost=cost).items():
        known = fresh.evaluate(plan)
        assert found.evaluated.rank <= known.rank, name
        assert name not in found.seeds or found.seeds[name].seconds == known.seconds
    assert "data_parallel" in found.seeds


def test_known_plans_far_behind_are_left_out_of_long_searches() -> None:
    lowering, cost = lowered(LARGE, 32, "flexflow-k80:nodes=1")
    known, same = seeds(lowering, cost=cost), Evaluator(lowering, cost)
    worth = {name: same.evaluate(plan).seconds for name, plan in known.items()}
    enough = sketched_plans.shortest_long_budget(same)
    long, short = search("mcmc", same, enough), search("mcmc", same, "1")
    assert short.seeds.keys() == known.keys() > long.seeds.keys()
    assert enough.proposals is not None and not sketched_plans.is_long(same, Budget(enough.proposals - 1))
    assert sketched_plans.is_long(same, Budget(seconds=1e-3))
    assert all(worth[name] > 1.05 * long.evaluated.seconds for name in known if name not in long.seeds)


def test_known_plans_not_near_the_best_are_begun_from_but_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    lowering, cost = lowered("alexnet", 4096, "flexflow-k80:nodes=4")
    evaluator = Evaluator(lowering, cost)
    known = sketched_plans.SketchedPlans(evaluator, seeds(lowering, cost=cost), Spaces(lowering, cost, None))
    promising, begun = known.promising(sketched_plans.NEAR), known.begun()
    assert sorted([*promising, *begun]) == sorted(known.within(sketched_plans.NEAR)) and begun
    assert known.promising(sketched_plans.FAR) == known.within(sketched_plans.FAR)
    # what a sketch does not see all of may be faster than it says
    assert not known.unseen & {*begun}
    starts, chain = [], mcmc._chain
    monkeypatch.setattr(mcmc, "_chain", lambda start, *rest: starts.append(start.configs) or chain(start, *rest))
    ends, simulate = [], mcmc._SketchedChains.simulate
    monkeypatch.setattr(mcmc._SketchedChains, "simulate", lambda of, end: ends.append(end) or simulate(of, end))
    found = search("mcmc", evaluator, "20000")
    assert found.seeds.keys() == {*promising, "data_parallel"}
    assert all(known.configs[name] in starts for name in begun)
    # nor is what a chain that began behind ends with, if that is behind too
    least = min(seed.seconds for seed in found.seeds.values())
    assert ends and all(end.energy < max(least, min(known.energy.values())) for end in ends)


def test_other_searches_leave_out_nothing_that_is_cheap_to_simulate() -> None:
    lowering, cost = lowered(LARGE, 32, "flexflow-k80:nodes=1")
    assert search("one_weird_trick", Evaluator(lowering, cost), LONG).seeds.keys() == seeds(lowering, cost=cost).keys()


def test_what_is_asked_for_is_evaluated_however_far_behind() -> None:
    lowering, cost = lowered(LARGE, 32, "flexflow-k80:nodes=1")
    slow = {"mine": seeds(lowering, cost=cost)["one_processor"]}
    found = search("mcmc", Evaluator(lowering, cost), LONG, start=slow, seeds=["data_parallel_2"])
    assert found.seeds.keys() == {"data_parallel", "data_parallel_2", "mine"}
    assert max(found.seeds.values(), key=lambda plan: plan.seconds) is found.seeds["mine"]


def test_a_long_search_repeats_bit_for_bit() -> None:
    def run(seed: int) -> tuple[bytes, tuple[tuple[int, float], ...], int]:
        lowering, cost = lowered("alexnet", 512, "flexflow-p100:nodes=1")
        found = search("mcmc", Evaluator(lowering, cost), "2500+", seed)
        return encode(found.strategy), found.history, found.num_proposals

    first = run(1)
    assert first == run(1) and first[2] >= 2500
    numbers, seconds = zip(*first[1], strict=True)
    assert list(numbers) == sorted(numbers) and list(seconds) == sorted(seconds, reverse=True)

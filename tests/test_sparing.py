"""Searches for little memory: what walks through sketches make small then, where known plans need least, and what is
found."""

from __future__ import annotations

import json

import numpy as np
import pytest

from castile.launch import models
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.families.updates import Updates
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.op import find
from castile.planner.search import search
from castile.planner.searching import least_memory
from castile.planner.searching.forecasts import Forecaster
from castile.planner.sketch.sketch import NUM_DRAWS
from castile.planner.sketch.sketched_plans import FAR, SketchedPlans
from castile.planner.step.recompute import FULL, Recomputation
from castile.runtime import machine as machines
from tests.answers import answer

GPT = "gpt:layers=2,width=32,heads=4,seq=16,vocab=64"


def evaluator(objective: str, microbatches: int = 1, way: str = "none") -> Evaluator:
    graph, updates = models.parse(GPT).graph(16), Updates(find("adam")())
    again = Recomputation(graph, updates).named(way)
    lowering = Lowering(graph, machines.parse("dgx-h100:nodes=1"), updates, microbatches=microbatches, recompute=again)
    return Evaluator(lowering, CostModel(lowering.machine), objective=objective)


def sieve(same: Evaluator) -> SketchedPlans:
    known = seeds(same.lowering, None, same.cost, None)
    return SketchedPlans(same, known, Spaces(same.lowering, same.cost, None))


@pytest.mark.parametrize("times", [0.1, 1.0, 10.0])
def test_a_sparing_walk_makes_small_what_the_fullest_processor_holds(times: float) -> None:
    """However much memory there is; longer steps count against a plan the less the longer they may be."""
    sketch, configs = (known := sieve(evaluator("memory"))).sketch, known.configs["data_parallel"]
    longer = times * sketch.seconds(configs)
    draws, first = np.random.default_rng(0).random((500, NUM_DRAWS)), sketch.number(configs)
    rooms = (np.full(8, 1.0), np.full(8, 1e12))
    trails = [sketch.walk(first.copy(), draws, np.full(500, 0.01), room, longer) for room in rooms]
    least, best = sketch.without_useless_changes(first, trails[0].best, 0.0, 0.0, rooms[0], longer)
    for energy, plan in ((trails[0].least, trails[0].best), (least, best)):
        seconds = sketch.seconds(sketch.configs(plan))
        assert energy == pytest.approx((1 + seconds / longer) * sketch.held.max(), rel=1e-9)
    sketch.seconds(configs)
    assert least <= trails[0].least < 2 * sketch.held.max() * (1 + 1 / times)
    assert trails[0].least == trails[1].least


def test_known_plans_are_told_by_what_they_hold() -> None:
    """And those that hold several times as much as the smallest are not looked at."""
    same = evaluator("memory")
    known = sieve(same)
    assert known.energy == {name: seen.nbytes for name, seen in known.estimates.items()}
    most = FAR * min(known.energy.values())
    assert known.within(FAR) == [name for name, nbytes in known.energy.items() if nbytes <= most]
    peaks = {name: max(same.evaluate(known.plans[name]).peak_bytes) for name in known.plans}
    assert all(0.4 * peak < known.energy[name] < 1.5 * peak for name, peak in peaks.items())


def test_few_of_the_plans_of_a_search_for_little_memory_are_simulated() -> None:
    same = evaluator("memory")
    found = search("mcmc", same, "4000")
    assert found.num_proposals == 4000 and len(same._known) < 200
    assert max(found.evaluated.peak_bytes) < min(max(seed.peak_bytes) for seed in found.seeds.values())
    assert search("mcmc", evaluator("memory"), "4000").strategy == found.strategy


def test_where_known_plans_need_least_nothing_is_given_up_for_nothing() -> None:
    """More microbatches, and more computed again, make the smallest known plan smaller by more than GAIN."""

    def outlook(way: str) -> Forecaster:
        return Forecaster(lambda number: (evaluator("memory", number, way), None))

    def least(way: str, number: int) -> int:
        one = evaluator("memory", number, way)
        return min(max(one.evaluate(plan).peak_bytes) for plan in seeds(one.lowering, None, one.cost, None).values())

    numbers, ways = (1, 4, 16), ("none", FULL)
    chosen = least_memory.least_memory_batching([outlook(way) for way in ways], numbers, lambda: False)
    assert chosen is not None
    every = {(way, number): least(way, number) for way in ways for number in numbers}
    way = "full" if chosen.evaluator.lowering.recompute else "none"
    mine, fewer = every[way, chosen.num_microbatches], [n for n in numbers if n < chosen.num_microbatches]
    assert mine <= 1.1 * min(every.values()) < every["none", 1] / 2
    assert fewer and mine < (1 - least_memory.GAIN) * every[way, fewer[-1]]
    late = least_memory.least_memory_batching([outlook(way) for way in ways], numbers, lambda: True)
    assert late is not None, "one is looked at however late it is"


def test_the_objective_memory_takes_every_way_to_less(capsys: pytest.CaptureFixture[str]) -> None:
    """As far as none is said; and nobody says that nothing else would have fitted."""
    words = ["plan", GPT, "--batch", "8", "--machine", "flexflow-p100:nodes=1", "--budget", "1000"]
    small, said = (answer(capsys, *words, "--objective", "memory", *more)
                   for more in ((), ("--accumulate", "1", "--recompute", "none")))  # fmt: skip
    assert (said["microbatches"], said["num_recomputed"], said["num_gathered_again"]) == (1, 0, 0)
    assert small["microbatches"] > 1 and small["found"]["live_bytes"] < said["found"]["live_bytes"] / 2
    assert not small["is_cut_to_fit"] and not small["is_recomputed_to_fit"]
    two = answer(capsys, *words, "--objective", "memory", "--accumulate", "2")
    assert two["microbatches"] == 2 and two["found"]["live_bytes"] < said["found"]["live_bytes"]


def test_a_front_ends_about_where_least_memory_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    model = GPT.replace("layers=2", "layers=1")
    words = ["plan", model, "--batch", "16", "--machine", "local:procs=2", "--budget", "100"]
    small, front = (answer(capsys, *words, *more) for more in (("--objective", "memory"), ("--front",)))
    least = min(max(point["arena_bytes"]) for point in front["front"])
    assert least <= 1.1 * max(small["found"]["arena_bytes"]), json.dumps(front["front"][-1])

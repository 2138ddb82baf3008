"""Choosing a plan where it is run: what is measured, and which plan is taken."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

from castile.launch import models
from castile.launch.jobs.execution import prepare
from castile.launch.measuring import plan_choice
from castile.planner.cost import CostModel
from castile.planner.costs.snapshot import Environment, Snapshot
from castile.planner.known.seeds import known_names, seed, seeds
from castile.planner.lower import Lowering
from castile.runtime import machine as machines
from tests.strategies import SGD

LOWERING = Lowering(models.parse("mlp:width=32").graph(64), machines.parse("dgx-h100:nodes=1"), SGD)


def chosen(name, monkeypatch, slower=lambda turn: 1):
    """What is chosen, and the plans that are measured, where they take as long as they are simulated to, or so many
    times as long in a turn."""
    measured, turns = [], count()

    def measure(job, trials, *others):
        factor = slower(next(turns))
        for t in trials:
            took = t.prepared.simulated.timeline
            t.steps.append(replace(took, start=factor * took.start, end=factor * took.end))
            measured.append(t.plan)

    cost = CostModel(LOWERING.machine)
    job = SimpleNamespace(
        machine=LOWERING.machine, lowering=LOWERING, cost=cost, snapshot=Snapshot(Environment("")), leads=True,
        prepare=lambda plan: prepare(job.lowering, plan, cost), learn=lambda *_: None,
        agree=lambda make: make(), agreed_plan=lambda make: make(),
    )  # fmt: skip
    monkeypatch.setattr(plan_choice, "measure", measure)
    return plan_choice.choose(job, plan_choice.PlanOptions(name, "20", 0), {}, 0.1), measured


@pytest.mark.parametrize("name", known_names(LOWERING))
def test_who_asks_for_a_known_plan_waits_for_no_other(name, monkeypatch):
    """Also where it is the same as another known plan, which would stand for both of them."""
    wanted = seed(name, LOWERING)
    found, measured = chosen(name, monkeypatch)
    assert found.asked_for and found.equals == name and found.plan.configs == wanted
    assert measured and all(plan.configs == wanted for plan in measured)


def test_a_search_measures_all_known_plans(monkeypatch):
    found, measured = chosen("random", monkeypatch)
    every = seeds(LOWERING)
    assert [plan.configs for plan in measured[: len(every)]] == [plan.configs for plan in every.values()]
    assert not found.asked_for


def test_a_plan_that_was_found_is_held_against_the_best_as_both_are_then(monkeypatch):
    """It is measured while the host is slower than it was: the best until then is, too."""
    every = {plan.configs["fc1"].procs: plan for plan in seeds(LOWERING).values()}
    plans = sorted(
        every.values(), key=lambda plan: prepare(LOWERING, plan, CostModel(LOWERING.machine)).simulated.seconds
    )
    found_later, best, worst = plans[0], plans[1], plans[-1]
    monkeypatch.setattr(plan_choice, "known", lambda *_: {"worst": worst, "best": best})
    monkeypatch.setattr(plan_choice, "searched", lambda *_: SimpleNamespace(strategy=found_later, num_proposals=1))
    found, measured = chosen("random", monkeypatch, lambda turn: 1 if turn == 0 else 100)
    assert measured == [worst, best, best, found_later]
    assert found.plan.configs == found_later.configs

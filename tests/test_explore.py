"""Choosing a plan where it is run: what is measured, and which plan is taken."""

from types import SimpleNamespace

import pytest

from castile.launch import models
from castile.launch.jobs.execution import prepare
from castile.launch.measuring import explore
from castile.planner.cost import CostModel
from castile.planner.costs.snapshot import Environment, Snapshot
from castile.planner.known.seeds import known_names, seed, seeds
from castile.planner.lower import Lowering
from castile.runtime import machine as machines
from tests.strategies import SGD

LOWERING = Lowering(models.parse("mlp:width=32").graph(64), machines.parse("dgx-h100:nodes=1"), SGD)


def chosen(name, monkeypatch):
    """What is chosen, and the plans that are measured, where they take as long as they are simulated to."""
    measured = []

    def measure(job, trials, *others):
        for t in trials:
            t.steps.append(t.prepared.simulated.timeline)
            measured.append(t.plan)

    cost = CostModel(LOWERING.machine)
    job = SimpleNamespace(
        machine=LOWERING.machine, lowering=LOWERING, cost=cost, snapshot=Snapshot(Environment("")), leads=True,
        prepare=lambda plan: prepare(job.lowering, plan, cost), learn=lambda *_: None,
        agree=lambda make: make(), agreed_plan=lambda make: make(),
    )  # fmt: skip
    monkeypatch.setattr(explore, "measure", measure)
    return explore.choose(job, explore.Wish(name, "20", 0), {}, 0.1), measured


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

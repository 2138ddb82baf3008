"""Parallel tempering: the same plans in any number of processes, budgets kept, exchanges that help."""

import itertools
import math
import os
import random
import signal
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from castile.planner.cost import CostModel
from castile.planner.evaluation import budget as budgets
from castile.planner.evaluation.budget import Budget
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.search import Evaluated, Evaluator, Run, search
from castile.planner.searches import tempering
from castile.planner.searching.walkers import Leg, Walkers
from castile.planner.strategy import Strategy, encode
from castile.runtime.machine import Level, Machine, Processor
from tests.effort import rare

LADDER = tempering.LADDER


def evaluator(objective: str = "time") -> Evaluator:
    g = Graph("two", "float32")
    x, y = g.input("x", (8, 24), "b i"), g.input("label", (8,), "b", "int32")
    h = g.linear("down", g.relu("act", g.linear("up", x, features=24)), features=4)
    g.minimise(g.cross_entropy("loss", h, y))
    g.outputs = ["down"]
    on = Machine("test", (Processor("p", 1e9, 1e10, 2**30, 0, 1e-7),) * 3, (Level("link", 3, 1e-6, 1e9),))
    return Evaluator(Lowering(g, on), CostModel(on), objective=objective)


@pytest.mark.parametrize("objective", ["time", *rare("memory")])
def test_processes_change_nothing_but_the_clock(objective):
    found = [search("tempering", evaluator(objective), "90", 5, num_processes=count) for count in (1, *rare(2), 3)]
    assert len({encode(one.strategy) for one in found}) == 1 and len({one.history for one in found}) == 1
    assert all(one.num_proposals == 90 for one in found)


@pytest.mark.parametrize("budget", [1, 3, 4, 7, 50, 203])
def test_a_budget_is_kept_to_the_last_proposal(budget):
    found = search("tempering", evaluator(), str(budget), 1)
    assert found.num_proposals == budget
    assert all(found.evaluated.rank <= known.rank for known in found.seeds.values())


@given(st.integers(0, 500), st.integers(0, 500))
def test_walks_share_what_is_left_and_the_coldest_go_on_longest(spent, left):
    run = SimpleNamespace(budget=Budget(proposals=spent + left), num_proposals=spent)
    counts = tempering._counts(run)
    assert sum(counts) == min(left, len(LADDER) * tempering.LEG)
    assert counts == sorted(counts, reverse=True) and max(counts) - min(counts) <= 1


def test_progress_is_told_and_seconds_end_it(monkeypatch):
    told: list[float] = []
    search("tempering", evaluator(), "120", progress=lambda spent, best, _: told.append(spent))
    assert told == sorted(told) and told[-1] == 1.0
    ticks = itertools.count()
    monkeypatch.setattr(budgets, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 10))
    # What is compiled meanwhile takes none of this clock's time, so none is to be taken off.
    monkeypatch.setattr(budgets, "compiling_seconds", lambda: 0.0)
    found = search("tempering", evaluator(), "20s")
    assert found.elapsed_seconds >= 20 and found.num_proposals > 0


def test_walkers_walk_each_leg_by_itself():
    same = evaluator()
    plan = seeds(same.lowering)["data_parallel"].configs
    legs = [Leg(plan, 0.1, 12, seed) for seed in (1, 2, 1)]
    with Walkers(same, 1) as alone, Walkers(same, 2) as two:
        first, again = alone.walk(legs), two.walk(legs)
        assert first == again == alone.walk(legs) and first[0] == first[2] != first[1]
    assert all(walked.num_proposals == 12 for walked in first)
    cold = Walkers(same, 1).walk([Leg(plan, 0.0, 30, 7)])[0]
    worth = same.evaluate(Strategy(cold.configs))
    assert worth.energy == min(same.evaluate(Strategy(configs)).energy for configs in cold.best)


def test_processes_end_with_their_walkers():
    same = evaluator()
    with Walkers(same, 2) as walkers:
        members = [member.process for member in walkers._forks]
        assert all(member.is_alive() and member.pid != os.getpid() for member in members)
    assert not any(member.is_alive() for member in members)
    with pytest.raises(KeyboardInterrupt), Walkers(same, 2) as walkers:
        members = [member.process for member in walkers._forks]
        raise KeyboardInterrupt
    assert not any(member.is_alive() for member in members)


def test_what_a_process_that_is_gone_was_to_walk_is_walked_here():
    same = evaluator()
    legs = [Leg(seeds(same.lowering)["data_parallel"].configs, 0.1, 12, seed) for seed in (1, 2, 3)]
    expected = Walkers(same, 1).walk(legs)
    with Walkers(same, 2) as walkers:
        os.kill(walkers._forks[0].process.pid, signal.SIGKILL)
        assert walkers.walk(legs) == walkers.walk(legs) == expected


def test_processes_whose_walkers_are_gone_or_that_hear_ctrl_c_end_without_a_word(capfd):
    same = evaluator()
    leg = Leg(seeds(same.lowering)["data_parallel"].configs, 0.1, 12, 1)
    with Walkers(same, 3) as walkers:
        walkers.walk([leg] * 3)
        busy, idle, _ = walkers._forks
        busy.ask([leg])
        os.kill(idle.process.pid, signal.SIGINT)
    assert (busy.process.exitcode, idle.process.exitcode, capfd.readouterr().err) == (0, 0, "")


@given(st.permutations([1.0, 2.0, 3.0, 4.0]), st.integers(0, 100))
def test_an_exchange_brings_the_best_to_the_coldest(seconds, seed):
    plan = Strategy({})
    current = [Evaluated(plan, s, (1,), 0, 0.0) for s in seconds]
    tempering._exchange(current, 1.0, random.Random(seed).random)
    assert sorted(e.seconds for e in current) == [1.0, 2.0, 3.0, 4.0]
    assert current[0].seconds == 1.0


@given(
    st.integers(0, len(LADDER) - 2), st.floats(-0.1, 0.1), st.floats(0, 1, exclude_max=True),
    st.sampled_from((1e-6, 1.0, 1e9)),
)  # fmt: skip
def test_neighbours_swap_as_likely_as_their_temperatures_say_in_any_unit(cold, gain, chance, unit):
    """By the Metropolis rule: the likelihoods of both ways are to each other as those of what they lead to."""
    # those that are colder are far better, and those that are hotter far worse
    energies = [unit * (100.0 * (1 + n - (n > cold)) - gain * (n == cold + 1)) for n in range(len(LADDER))]
    current = [Evaluated(Strategy({}), energy, (1,), 0, 0.0) for energy in energies]
    swapped = [*energies[:cold], energies[cold + 1], energies[cold], *energies[cold + 2 :]]
    cost = [sum(e / unit / heat for e, heat in zip(each, LADDER)) for each in (energies, swapped)]
    likely = math.exp(min(0.0, cost[0] - cost[1]))
    assume(abs(likely - chance) > 1e-6)
    tempering._exchange(current, unit, lambda: chance)
    assert [e.seconds for e in current] == (swapped if chance < likely else energies)


def test_walks_go_their_own_ways_from_where_they_or_their_neighbours_came(monkeypatch):
    """From the best of the seeds, the best of them coldest; and never twice by the same chance."""
    rounds = []

    class Watched(Walkers):
        def walk(self, legs):
            rounds.append((legs, found := super().walk(legs)))
            return found

    monkeypatch.setattr(tempering, "Walkers", Watched)
    monkeypatch.setattr(tempering, "LEG", 4)
    same = evaluator()
    found = search("tempering", same, "96", 2)
    drawn = [leg.seed for legs, _ in rounds for leg in legs]
    assert len(set(drawn)) == len(drawn) > 2 * len(LADDER)
    assert all(leg.temperature == heat for legs, _ in rounds for leg, heat in zip(legs, LADDER))
    energies = sorted(seed.energy for seed in found.seeds.values())
    begun = [same.evaluate(Strategy(leg.configs)).energy for leg in rounds[0][0]]
    assert begun == [energies[min(n, len(energies) - 1)] for n in range(len(begun))] and begun[0] < begun[-1]
    swapped = 0
    for (_, before), (after, _) in pairwise(rounds):
        came, going = ([encode(Strategy(one.configs)) for one in each] for each in (before, after))
        assert sorted(came) == sorted(going)
        swapped += came != going
    assert 0 < swapped


def test_alike_walks_swap_now_and_then():
    plan = Strategy({})
    swapped = 0
    for seed in range(200):
        current = [Evaluated(plan, s, (1,), 0, 0.0) for s in (1.0, 1.001, 5.0, 5.0)]
        tempering._exchange(current, 1.0, random.Random(seed).random)
        swapped += current[0].seconds == 1.001
    # exp(-0.001 (1 / 0.002 - 1 / 0.006))
    assert 0.6 < swapped / 200 < 0.83


def test_what_was_walked_elsewhere_counts():
    same = evaluator()
    worth = {name: same.evaluate(plan) for name, plan in seeds(same.lowering).items()}
    run = Run(same, Budget(proposals=10), random.Random(0), worth)
    run.adopt(5, list(worth.values()))
    assert run.num_proposals == 5 and run.spent == 0.5

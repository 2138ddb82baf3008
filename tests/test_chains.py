"""Chains of walks: what each finds is the same whether it was foreseen, foreseen wrongly or not at all."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from castile.launch import models
from castile.planner.choices.spaces import Spaces
from castile.planner.cost import CostModel
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.search import search
from castile.planner.searches import mcmc
from castile.planner.sketch.chains import Chain, Chains
from castile.planner.sketch.sketch import NumberedWalk, Sketch, WalkResult
from castile.planner.strategy import Config, Strategy, encode
from castile.runtime import machine as machines
from castile.runtime.machine import Machine

MODEL, SAMPLES, MACHINE = "lenet", 64, "flexflow-k80:nodes=1"


def lowered(machine: Machine) -> Lowering:
    return Lowering(models.parse(MODEL).graph(SAMPLES), machine)


def fresh() -> tuple[Sketch, list[dict[str, Config]], np.ndarray]:
    """A sketch, plans to begin with, and the bytes of processors."""
    machine = machines.parse(MACHINE)
    lowering, cost = lowered(machine), CostModel(machine)
    plans = [dict(seeds(lowering)[name].configs) for name in ("data_parallel", "one_weird_trick", "one_processor")]
    sketch = Sketch(lowering, cost, Spaces(lowering, cost), plans)
    for plan in plans:
        sketch.seconds(plan)
    return sketch, plans, np.array([p.memory_bytes for p in machine.processors], np.float64)


def found(chains: Chains, asked: Sequence[Chain]) -> list[WalkResult]:
    try:
        return [chains.walk(chain) for chain in asked]
    finally:
        chains.stop()


@pytest.mark.parametrize("seed", range(4))
def test_what_was_foreseen_changes_nothing(seed: int) -> None:
    sketch, plans, capacity = fresh()
    rng = random.Random(seed)
    asked = [Chain(rng.choice(plans), rng.random() < 0.5, rng.choice([100, 300]), rng.random() < 0.5) for _ in range(6)]
    known = found(Chains(sketch, capacity, seed), asked)
    assert known != found(Chains(sketch, capacity, seed + 1), asked)
    # Right to the end, wrong from some chain on, of which there may be more than are asked for, or fewer.
    for right in range(len(asked) + 1):
        wrong = [chain._replace(num_proposals=chain.num_proposals + 1) for chain in asked[right:]]
        for guess in (asked[:right] + wrong + asked, asked[:right]):
            chains = Chains(sketch, capacity, seed)
            chains.prefetch(guess)
            assert found(chains, asked) == known, right


def test_threads_are_patient_again_once_nobody_walks() -> None:
    sketch, plans, capacity = fresh()
    before = sys.getswitchinterval()
    chains = Chains(sketch, capacity, 0)
    chains.prefetch([Chain(plans[0], False, 100, False)] * 3)
    try:
        assert sys.getswitchinterval() <= before
    finally:
        chains.stop()
    assert sys.getswitchinterval() == before


def test_walks_that_ask_what_others_change_are_not_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch, plans, capacity = fresh()
    names: list[str] = []
    trail = Sketch.walk

    def noted(self: Sketch, *given: Any) -> NumberedWalk:
        names.append(threading.current_thread().name)
        return trail(self, *given)

    monkeypatch.setattr(Sketch, "walk", noted)
    for is_plain in (True, False):
        sketch._works.is_plain = is_plain
        chains = Chains(sketch, capacity, 0)
        chain = Chain(plans[0], False, 50, False)
        chains.prefetch([chain] * 3)
        found(chains, [chain] * 3)
    here = threading.current_thread().name
    assert len(names) == 6 and {*names[:3]} != {here} and names[3:] == [here] * 3


def test_who_waits_for_a_chain_walks_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch, plans, capacity = fresh()
    asked = [Chain(plans[n % len(plans)], n % 2 == 0, 100, n % 3 == 0) for n in range(5)]
    known = found(Chains(sketch, capacity, 0), asked)
    here, names, trail, helped = threading.current_thread().name, list[str](), Sketch.walk, threading.Event()

    def noted(self: Sketch, *given: Any) -> NumberedWalk:
        names.append(threading.current_thread().name)
        if names[-1] == here:
            helped.set()
        assert names[-1] == here or helped.wait(60)
        return trail(self, *given)

    monkeypatch.setattr(Sketch, "walk", noted)
    monkeypatch.setattr("castile.planner.sketch.chains.num_cores", lambda: 2)
    chains = Chains(sketch, capacity, 0)
    chains.prefetch(asked)
    assert found(chains, asked) == known
    assert 0 < names.count(here) < len(names) == len(asked)


def test_a_search_is_the_same_whatever_was_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(guess: Callable[[Sequence[Chain]], Sequence[Chain]]) -> tuple[bytes, object, int]:
        monkeypatch.setattr(Chains, "prefetch", lambda self, chains: foresee(self, guess(chains)))
        machine = machines.parse(MACHINE)
        told = search("mcmc", Evaluator(lowered(machine), CostModel(machine)), "6000+", 1)
        return encode(told.strategy), told.history, told.num_proposals

    foresee, guesses = Chains.prefetch, list[int]()
    known = run(lambda chains: guesses.append(len(chains)) or chains)
    assert guesses == [2]
    assert known == run(lambda chains: []) == run(lambda chains: chains[:1] + chains[:1])


def test_a_search_asks_for_what_it_foresaw_though_simulating_puts_known_plans_in_another_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    foreseen, asked = list[Chain](), list[Chain]()
    foresee, walk = Chains.prefetch, Chains.walk
    monkeypatch.setattr(Chains, "prefetch", lambda self, chains: foreseen.extend(chains) or foresee(self, chains))
    monkeypatch.setattr(Chains, "walk", lambda self, chain: asked.append(chain) or walk(self, chain))
    machine = machines.parse(MACHINE)
    told = search("mcmc", Evaluator(Lowering(models.parse("alexnet").graph(1024), machine), CostModel(machine)), "8000")
    plain = [seed for seed in told.seeds.values() if len(seed.strategy.configs) == len(asked[0].configs)]
    by_time = sorted(plain, key=lambda seed: seed.energy)
    assert by_time[0].strategy.configs != asked[0].configs
    assert len(foreseen) >= len(by_time) == 3
    assert asked[: len(foreseen)] == foreseen


def test_of_the_best_end_the_simulator_judges_what_gains_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left without that is found where it is better, and changes nothing where it is worse."""
    asked = list[tuple[float, float]]()
    machine = machines.parse(MACHINE)

    def found(plain: Callable[[dict[str, Config]], dict[str, Config]], seed: int = 0) -> Evaluated:
        def trimmed(self: Chains, chain: Chain, plan: dict[str, Config], each: float, every: float) -> Any:
            asked.append((each, every))
            return plain(plan)

        monkeypatch.setattr(Chains, "without_useless_changes", trimmed)
        return search("mcmc", Evaluator(lowered(machine), CostModel(machine)), "4000", seed).evaluated

    known, better = found(lambda plan: plan), found(lambda plan: plan, 2)
    worse = seeds(lowered(machine))["one_processor"].configs
    assert better.seconds < known.seconds
    assert found(lambda plan: dict(worse)).strategy == known.strategy
    assert found(lambda plan: dict(better.strategy.configs)).seconds <= better.seconds
    assert set(asked) == {(mcmc.SMALL_GAIN, mcmc.SMALL_TOTAL)}


@pytest.mark.parametrize("fits", [True, False])
def test_chains_begin_at_the_best_plans_of_which_no_two_have_nodes_alike(fits: bool) -> None:
    """Of two that differ in an update alone at the one by default, if it fits; in the order of the sketch."""
    on = [Config(procs=(proc,)) for proc in range(4)]
    procs = {"first": 0, "own": 1, "default": 1, "third": 2, "last": 3}
    nodes = {name: {"a": on[proc]} for name, proc in procs.items()}
    energy = dict(zip(nodes, (1.0, 2.0, 3.5, 3.0, 4.0), strict=True))
    plans = {name: Strategy(configs) for name, configs in nodes.items()}
    plans["own"] = Strategy({**nodes["own"], "step": on[0]})
    sieve: Any = SimpleNamespace(configs=nodes, energy=energy, in_pieces={"own"})
    starts = mcmc._starts(sieve, plans, energy, {*plans} - (set() if fits else {"default"}))
    names = ["first", "third", "default"] if fits else ["first", "own", "third"]
    assert [start.energy for start in starts] == [energy[name] for name in names]
    assert [start.configs for start in starts] == [nodes[name] for name in names]
    assert [start.kept for start in starts] == [{"step": on[0]} if name == "own" else {} for name in names]
    assert [start.in_pieces for start in starts] == [name == "own" for name in names]

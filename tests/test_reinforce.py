"""Placement by policy gradient: the gradient is one, what it proposes is whole, and it learns."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner.graph import Graph
from castile.planner.search import Run, search
from castile.planner.searches import reinforce
from castile.planner.searches.reinforce import Policy
from castile.planner.strategy import encode
from tests.effort import examples
from tests.little import GRAPHS, evaluator, machine, run, two_layers, two_towers


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_the_gradient_is_that_of_the_expected_reward(nodes, procs, seed):
    rng = np.random.default_rng(seed)
    policy = Policy(nodes, procs)
    policy.logits = rng.normal(size=(nodes, procs))
    every = np.stack(np.meshgrid(*[np.arange(procs)] * nodes, indexing="ij"), -1).reshape(-1, nodes)
    rewards = rng.normal(size=len(every))

    def expected() -> float:
        p = policy.probabilities
        entropy = -(p * np.log(p)).sum()
        return float((p[np.arange(nodes), every].prod(axis=1) * rewards).sum() + 0.3 * entropy)

    chances = policy.probabilities[np.arange(nodes), every].prod(axis=1)
    exact = policy.gradient(every, rewards * chances * len(every), 0.3)
    for node, proc in np.ndindex(nodes, procs):
        policy.logits[node, proc] += 1e-6
        above = expected()
        policy.logits[node, proc] -= 2e-6
        below = expected()
        policy.logits[node, proc] += 1e-6
        assert abs((above - below) / 2e-6 - exact[node, proc]) < 1e-6


@settings(max_examples=examples(100))
@given(st.integers(0, 10**6))
def test_samples_follow_the_probabilities(seed):
    policy = Policy(1, 3)
    policy.logits = np.array([[0.0, 1.0, 2.0]])
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([policy.sample(rng) for _ in range(600)])
    assert np.abs(np.bincount(drawn, minlength=3) / 600 - policy.probabilities[0]).max() < 0.12


@given(st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=4), st.integers(0, 10**6))
def test_a_policy_that_is_sure_goes_on(logits, seed):
    """Probabilities that are too small to be told are none, and what rounding leaves beyond the last is the last's."""
    policy, rng = Policy(1, len(logits)), np.random.default_rng(seed)
    policy.logits = np.array([logits])
    last = SimpleNamespace(random=lambda shape: np.full(shape, np.nextafter(1.0, 0.0)))
    for draw in (rng, last):
        placement = policy.sample(draw)
        assert 0 <= placement[0] < len(logits)
    assert np.isfinite(policy.gradient(placement[None], np.ones(1), 0.3)).all()


@given(st.integers(0, 10**6), st.floats(1e-9, 1e9))
def test_a_step_is_the_same_in_any_unit_of_reward(seed, unit):
    """The first as long for each logit as steps are; where all rewards are alike there is none."""
    rng, steps = np.random.default_rng(seed), []
    placements, advantages = rng.integers(0, 3, (5, 2, 3)), rng.normal(size=(5, 2))
    for scale in (1.0, unit):
        policy = Policy(3, 3)
        for of, worth in zip(placements, advantages, strict=True):
            before = policy.logits.copy()
            policy.learn(of, worth * scale, 0.3)
            steps.append(policy.logits - before)
        before = policy.logits.copy()
        policy.learn(placements[0], np.zeros(2), 0.3)
        assert (policy.logits == before).all()
    np.testing.assert_allclose(steps[:5], steps[5:], atol=1e-9)
    slope = Policy(3, 3).gradient(placements[0], advantages[0], 0.3)
    is_sloping = np.abs(slope) > 1e-6 * np.abs(advantages[0]).max()
    assert np.abs(steps[0])[is_sloping] == pytest.approx(reinforce.RATE, rel=0.1)


def test_rewards_are_told_from_their_first_mean_and_what_keeps_a_policy_open_fades(monkeypatch):
    told = []
    monkeypatch.setattr(Policy, "learn", lambda self, placements, *given: told.append(given))
    watched(two_layers(), 2, "50")
    assert told[0][0].mean() == pytest.approx(0, abs=1e-12) and told[0][0].std() > 0
    assert [entropy / reinforce.ENTROPY for _, entropy in told] == pytest.approx([0.8, 0.6, 0.4, 0.2, 0])


def watched(graph: Graph, procs: int, budget: str) -> tuple[list[tuple[dict, float]], Run]:
    """What is proposed, in order, with its seconds."""
    under_way, seen = run(evaluator(graph, machine(procs)), budget), []
    propose = under_way.propose

    def watch(configs, most=float("inf")):
        found = propose(configs, most)
        seen.append((dict(configs), found.seconds))
        return found

    under_way.propose = watch  # type: ignore[method-assign]
    reinforce.search(under_way)
    return seen, under_way


def test_every_node_is_whole_on_one_processor_and_the_budget_holds():
    seen, under_way = watched(two_layers(), 3, "47")
    assert len(seen) == under_way.num_proposals == 47
    assert all(c.split == {} and c.replicas == 1 and len(c.procs) == 1 for configs, _ in seen for c in configs.values())
    assert {c.procs[0] for configs, _ in seen for c in configs.values()} == {0, 1, 2}


def test_it_learns_to_put_two_towers_on_two_processors():
    seen, under_way = watched(two_towers(), 2, "400")
    seconds = [s for _, s in seen]
    assert np.mean(seconds[-50:]) < 0.9 * np.mean(seconds[:50])
    assert under_way.best.seconds < 0.75 * under_way.seeds["one_processor"].seconds


@settings(max_examples=examples(10))
@given(st.sampled_from(sorted(GRAPHS)), st.integers(1, 3), st.integers(0, 3))
def test_it_repeats_and_is_never_behind_a_seed(name, procs, seed):
    first, again = (search("reinforce", evaluator(GRAPHS[name], machine(procs)), "25", seed) for _ in range(2))
    assert encode(first.strategy) == encode(again.strategy) and first.history == again.history
    assert all(first.evaluated.seconds <= known.seconds for known in first.seeds.values())

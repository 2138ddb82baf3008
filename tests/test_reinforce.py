"""Placement by policy gradient: the gradient is one, what it proposes is whole, and it learns."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner.graph import Graph
from castile.planner.search import Run, search
from castile.planner.searches import reinforce
from castile.planner.searches.reinforce import Policy
from castile.planner.strategy import encode
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


@given(st.integers(0, 10**6))
def test_samples_follow_the_probabilities(seed):
    policy = Policy(1, 3)
    policy.logits = np.array([[0.0, 1.0, 2.0]])
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([policy.sample(rng) for _ in range(600)])
    assert np.abs(np.bincount(drawn, minlength=3) / 600 - policy.probabilities[0]).max() < 0.12


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


@settings(max_examples=10)
@given(st.sampled_from(sorted(GRAPHS)), st.integers(1, 3), st.integers(0, 3))
def test_it_repeats_and_is_never_behind_a_seed(name, procs, seed):
    first, again = (search("reinforce", evaluator(GRAPHS[name], machine(procs)), "25", seed) for _ in range(2))
    assert encode(first.strategy) == encode(again.strategy) and first.history == again.history
    assert all(first.evaluated.seconds <= known.seconds for known in first.seeds.values())

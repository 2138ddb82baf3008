"""Bounds over a path and the work after it: below every plan, exact in their own terms, and no idle ones."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castile.planner.bounds.additive import Additive
from castile.planner.bounds.partial_bounds import PartialBounds
from castile.planner.bounds.path_bounds import PathBounds, longest
from castile.planner.choices.space import space_of
from castile.planner.strategy import Strategy
from castile.runtime.timeline import PICOSECONDS
from tests.effort import examples
from tests.little import GRAPHS, evaluator, machine
from tests.strategies import machines, problems


def drawn(data, problem, on, most=3):
    """Bounds of a graph whose nodes each have a few Configs."""
    same = evaluator(problem.graph, on)
    spaces = [space_of(node, on.num_procs) for node in problem.graph.nodes.values()]
    some = [data.draw(st.sets(st.integers(0, len(s) - 1), min_size=1, max_size=most)) for s in spaces]
    choices = [[space[number] for number in sorted(numbers)] for space, numbers in zip(spaces, some)]
    return same, PartialBounds(Additive(same.lowering, same.cost), choices)


@settings(max_examples=examples(80))
@given(problems(most_layers=5), machines(), st.data())
def test_no_plan_takes_less_and_what_is_chosen_only_raises_the_bound(problem, on, data):
    same, relaxed = drawn(data, problem, on)
    ladder = PathBounds(relaxed)
    point = [data.draw(st.integers(0, len(configs) - 1)) for configs in relaxed.choices]
    plan = {name: configs[n] for name, configs, n in zip(problem.graph.nodes, relaxed.choices, point)}
    seconds, known = same.evaluate(Strategy(plan)).seconds, 0
    for node in range(len(point)):
        bound = int(ladder.bounds(dict(enumerate(point[:node])), node)[point[node]])
        chosen = dict(enumerate(point[: node + 1]))
        tighter = ladder.bound(chosen, relaxed.served(chosen)[1])
        assert known <= bound <= tighter <= round(seconds * PICOSECONDS)
        known = bound


@settings(max_examples=30)
@given(problems(most_layers=3), machines(3), st.data())
def test_elimination_leaves_the_least_over_open_nodes(problem, on, data):
    _, relaxed = drawn(data, problem, on, most=2)
    ladder = PathBounds(relaxed)
    last = len(relaxed.choices) - 1
    points = list(product(*(range(len(configs)) for configs in relaxed.choices[:-1])))
    every = np.array([ladder._sums(ladder.tables, dict(enumerate(p)), last).min(axis=1) for p in points[:64]])
    if len(points) <= 64:
        assert (ladder._sums(ladder.tables, {}, 0).min(axis=1) == every.min(axis=0)).all()


def test_it_knows_more_than_the_longest_path_of_each_node_for_itself():
    """Where links are slow no two nodes can both have their best Config; who looks at pairs sees that."""
    same = evaluator(GRAPHS["two"], machine(2, latency=1e-5, rate=1e7))
    spaces = [space_of(node, 2).configs for node in GRAPHS["two"].nodes.values()]
    relaxed = PartialBounds(Additive(same.lowering, same.cost), spaces)
    assert PathBounds(relaxed).bounds({}, 0).min() > 1.05 * relaxed.bounds({}, 0).min()


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_the_path_is_one(name):
    same = evaluator(GRAPHS[name], machine(2))
    relaxed = PartialBounds(
        Additive(same.lowering, same.cost), [space_of(n, 2).configs for n in GRAPHS[name].nodes.values()]
    )
    path = longest(relaxed)
    assert len(path) > 2 * len(GRAPHS[name].nodes) / 2
    for before, after in zip(path, path[1:]):
        assert any(wait.before == before for wait in relaxed.waits[after])

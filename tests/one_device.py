"""What a plan trains beside what one device does, from the same numbers; graphs train on one device once.

It does not know how near the two must be.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from castile.planner.strategy import Strategy
from castile.runtime.machine import Machine
from tests.strategies import Problem, batches, beginnings, whole_on
from tests.training import Trained, train

# Losses, and what is carried by name.
Numbers = tuple[np.ndarray, dict[str, np.ndarray]]
# Most examples have a graph that another has, under other plans.
_on_one: dict[Any, Numbers] = {}


def on_one_and_many(
    problem: Problem, machine: Machine, strategy: Strategy, size: int, steps: int, exact: bool, rate: float
) -> tuple[Numbers, Trained]:
    """What so many steps train on one device with the batch whole, and what they do under the plan on `size` ranks.

    ValueError where the plan is none for the graph.
    """
    graph = problem.graph
    data, values = batches(problem, steps, exact), beginnings(problem, exact)
    many = train(graph, strategy, machine, data, values, rate, size)
    key = graph.fingerprint, tuple(problem.labels.items()), steps, exact, rate
    if key not in _on_one:
        one = train(graph, whole_on(graph), machine, data, values, rate)
        _on_one[key] = one.losses, one.carried
    return _on_one[key], many

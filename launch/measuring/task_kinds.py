"""The kinds of tasks that the passes of nodes have under a plan, known without lowering the plan to tasks.

It does not know what they take.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

import numpy as np

from castile.planner.lower import Lowering
from castile.planner.lowering.instances import StepInstance
from castile.planner.strategy import Strategy
from castile.runtime.task import CostKey, TaskGraph

# What a task is of, its pass or form, of which microbatch: fc1.F@1[0], flat@0:4:move[0], loss:fold[0] and 1 more.
_NAME = re.compile(r"(?P<of>[^@]+)(@\d+:\d+)?[.:][^.:@[]+(@\d+)?\[[^]]*\](?P<more> and \d+ more)?")


def of_pass(step: StepInstance) -> Iterator[tuple[CostKey, int, int]]:
    """The kinds of a pass's tasks: cost key, one of its parts, and the number of its tasks."""
    does = step.template.does
    firsts, counts = np.unique(does.number, return_index=True, return_counts=True)[1:]
    for part, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        yield does.of(part).key, part, count * step.config.replicas


def names_of(lowering: Lowering) -> list[str]:
    """All names of nodes: of the graph, of updates and the like, and of nodes that were fused into others."""
    return [*lowering.names.nodes, *lowering.names.optional, *lowering.names.within]


def of_nodes(lowering: Lowering, plans: Iterable[Strategy], patterns: Sequence[str]) -> frozenset[CostKey]:
    """The kinds of tasks, in the steps of these plans, of nodes whose name matches a pattern.

    The name of a fused node stands for the node that it became part of. Raises ValueError for an invalid plan.
    """
    # what one microbatch computes all do
    few, within = lowering.shortened(2), lowering.names.within
    matching = (name for name in names_of(lowering) if any(fnmatchcase(name, pattern) for pattern in patterns))
    asked = {within.get(name, name) for name in matching}
    return frozenset(
        key for plan in plans for step in few.steps(plan) if step.step.node.name in asked for key, *_ in of_pass(step)
    )


def owners(tasks: TaskGraph, keys: Container[CostKey]) -> dict[CostKey, tuple[str, ...]]:
    """What the tasks of each of these kinds belong to, each once: nodes, or what is transferred; of several that are
    done together the first, and how many more.
    """
    wanted = np.array([key in keys for key in tasks.cost_keys])
    found: dict[CostKey, dict[str, None]] = {key: {} for key in tasks.cost_keys if key in keys}
    for task in np.flatnonzero(wanted[tasks.cost]).tolist():
        name = tasks.tasks[task].name
        parts = _NAME.fullmatch(name)
        found[tasks.cost_keys[tasks.cost[task]]][parts["of"] + (parts["more"] or "") if parts else name] = None
    return {key: tuple(names) for key, names in found.items()}


def is_among(key: CostKey, only: Container[CostKey] | None) -> bool:
    """Whether a kind of task is one of these, wherever its arrays lie; always for None."""
    return only is None or (key.dense or key) in only

"""Alternatives: what a step would take were one node laid out otherwise, or some as in another plan.

It does not know why; explanations do. Nor does it search: all but what is asked about stays as it is.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import log2, prod
from typing import Any

import msgspec
import numpy as np

from castile.planner.choices.space import placements, space_of
from castile.planner.evaluation.budget import Budget
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.evaluation.evaluator import Evaluator
from castile.planner.graph import Node
from castile.planner.lower import Lowering
from castile.planner.strategy import Config, Strategy
from castile.runtime.strict import hint
from castile.runtime.timeline import PICOSECONDS
from castile.runtime.transfer import TooManyTransfers

Configs = Mapping[str, Config | None]
Difference = tuple[str, Config | None, Config | None]

# Of more differences between plans, as of pipelines of many stages, those that are cut alike are looked at together.
MOST_APART = 20


@dataclass(frozen=True)
class Alternatives:
    """Other layouts of one node, all else equal.

    chosen          as the plan has it
    best            the best others, each with what the plan with it is worth
    num_layouts     other layouts that differ in degrees or replicas, each placed as near as it goes
    num_simulated   of these; a bound rules out num_excluded, which take longer than the best ones
    num_refused     that would have been simulated but for too many transfers or tasks to look at
    """

    name: str
    chosen: Config
    best: tuple[tuple[Config, Evaluated], ...]
    num_layouts: int
    num_simulated: int
    num_excluded: int
    num_refused: int


@dataclass(frozen=True)
class Switch:
    """Nodes that another plan lays out otherwise, and what the plan is worth with these as there and all else as here.

    here, there   of each; None where a plan leaves an update, accumulator or fetch to its default
    """

    here: Configs
    there: Configs
    evaluated: Evaluated

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.there)


@dataclass(frozen=True)
class Switches:
    """What each difference to another plan does by itself: first those that make the step shorter.

    num_left, num_refused   how many the budget did not reach, and how many have too much to look at
    """

    best: tuple[Switch, ...]
    num_left: int
    num_refused: int


def node_of(lowering: Lowering, plan: Strategy, name: str) -> str:
    """The node of a plan that a name means: what became part of a node stands for that node.

    Raises ValueError where the plan has no such node.
    """
    configs, within = lowering.configs(plan), lowering.names.within
    found = within.get(name, name)
    if found not in configs:
        raise ValueError(f"the plan has no node {name!r}{hint(name, [*configs, *within])}")
    return found


def alternatives(evaluator: Evaluator, plan: Strategy, name: str, budget: Budget, most: int = 3) -> Alternatives:
    """The best `most` other layouts of a node by simulation, among those that the budget lets it simulate.

    Those come first that are most like the chosen one. The evaluator's lowering cuts the batch as the plan does. What
    became part of a node stands for that node. Raises ValueError where the plan has no such node.
    """
    lowering = evaluator.lowering
    assert plan.microbatches == lowering.microbatches
    name = node_of(lowering, plan, name)
    chosen = lowering.configs(plan)[name]
    node = lowering.piece.nodes.get(name) or lowering.names.optional[name]
    layouts = _layouts(node, chosen, lowering.machine.num_procs)
    floors = _floors(evaluator, plan, name, layouts)
    best: list[tuple[Config, Evaluated]] = []
    budget, num_spent, num_excluded, num_refused = budget.begun(), 0, 0, 0
    for number in sorted(range(len(layouts)), key=lambda n: (*_distance(layouts[n], chosen), floors[n])):
        if len(best) == most and best[-1][1].fits and floors[number] > best[-1][1].seconds:
            num_excluded += 1
        elif _is_left(budget, num_spent):
            num_spent += 1
            config = layouts[number]
            found = _with(evaluator, plan, {name: config})
            num_refused += found is None
            if found is not None:
                best = sorted([*best, (config, found)], key=lambda pair: pair[1].rank)[:most]
    return Alternatives(name, chosen, tuple(best), len(layouts), num_spent - num_refused, num_excluded, num_refused)


def switches(evaluator: Evaluator, plan: Strategy, other: Strategy, budget: Budget) -> Switches:
    """What each difference to another plan does by itself.

    Nodes whose names differ in numbers only and that move alike switch together; where that leaves many, also those
    that are cut alike and lie elsewhere, as on other stages of a pipeline.
    """
    groups = differences(plan.configs, other.configs)
    groups = groups if len(groups) <= MOST_APART else _wherever(groups)
    budget, num_spent = budget.begun(), 0
    found = []
    for names in groups.values():
        if not _is_left(budget, num_spent):
            break
        num_spent += 1
        here, there = ({name: of.configs.get(name) for name in names} for of in (plan, other))
        worth = _with(evaluator, plan, there)
        if worth is not None:
            found.append(Switch(here, there, worth))
    best = tuple(sorted(found, key=lambda switch: switch.evaluated.rank))
    return Switches(best, len(groups) - num_spent, num_spent - len(found))


def _wherever(groups: Mapping[Difference, list[str]]) -> dict[Any, list[str]]:
    """Those together that are called and cut alike, here and there."""
    found: dict[Any, list[str]] = {}
    for (kind, here, there), names in groups.items():
        found.setdefault((kind, here and here.cuts, there and there.cuts), []).extend(names)
    return found


def differences(here: Mapping[str, Config], there: Mapping[str, Config]) -> dict[Difference, list[str]]:
    """(pattern of names, Config here, Config there) -> the nodes that move so; None where a plan says nothing."""
    groups: dict[Difference, list[str]] = {}
    for name in dict.fromkeys((*here, *there)):
        one, two = here.get(name), there.get(name)
        if one is None or two is None or plain(one) != plain(two):
            groups.setdefault((pattern(name), one and plain(one), two and plain(two)), []).append(name)
    return groups


def plain(config: Config) -> Config:
    """A layout written in the one way in which equal ones are equal: without degrees of 1, axes by name."""
    return Config({axis: n for axis, n in sorted(config.split.items()) if n > 1}, config.replicas, config.procs)


def pattern(name: str) -> str:
    """A name with a star for every number, alike for all layers of a kind."""
    return re.sub(r"\d+", "*", name)


def _is_left(budget: Budget, num_spent: int) -> bool:
    """Whether a budget that has begun, and of which so many proposals are spent, has another one."""
    return not budget.is_over() and (budget.proposals is None or num_spent < budget.proposals)


def _with(evaluator: Evaluator, plan: Strategy, changes: Mapping[str, Config | None]) -> Evaluated | None:
    """What the plan is worth with these Configs instead of its own; None where it has too much to look at."""
    configs = {name: config for name, config in {**plan.configs, **changes}.items() if config is not None}
    with contextlib.suppress(TooManyTransfers):
        return evaluator.evaluate(msgspec.structs.replace(plan, configs=configs))
    return None


def _layouts(node: Node, chosen: Config, num_procs: int) -> list[Config]:
    """Layouts with other degrees or replicas, each where it overlaps most with the processors of the chosen one."""
    here = set(chosen.procs)
    found = []
    for split in space_of(node, num_procs).splits:
        nearest: dict[int, tuple[int, ...]] = {}
        for placed in placements(prod(split.values()), num_procs):
            known = nearest.get(placed.replicas)
            if known is None or len(here & set(placed.procs)) > len(here & set(known)):
                nearest[placed.replicas] = placed.procs
        found += [Config(dict(split), replicas, procs) for replicas, procs in nearest.items()]
    own = plain(chosen)
    return [c for c in found if (plain(c).split, c.replicas) != (own.split, own.replicas)]


def _distance(one: Config, other: Config) -> tuple[int, float]:
    """How many processors only one of them has, to which all would be sent; and by how many halvings or doublings of
    degrees the one becomes the other."""
    pairs = [(one.degree(axis), other.degree(axis)) for axis in sorted({*one.split, *other.split})]
    halvings = sum(abs(log2(mine / theirs)) for mine, theirs in (*pairs, (one.replicas, other.replicas)))
    return len({*one.procs} ^ {*other.procs}), halvings


def _floors(evaluator: Evaluator, plan: Strategy, name: str, layouts: list[Config]) -> np.ndarray:
    """Seconds below which no step can be with each layout: the kernels of the busiest processor."""
    rest = sum(
        (evaluator.work(other, config) for other, config in plan.configs.items() if other != name),
        np.zeros(evaluator.lowering.machine.num_procs, np.int64),
    )
    return np.array([(rest + evaluator.work(name, config)).max() / PICOSECONDS for config in layouts])

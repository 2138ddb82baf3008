"""Metropolis search: random changes to a plan, kept when they shorten the step or, now and then, when they do not.

After Jia, Zaharia, Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", MLSys 2019, section 6, with the
temperature relative to the plan's own time, moves over several nodes, and a start from every seed. It does not know
what a step takes.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from castile.planner.graph import Graph, Node
from castile.planner.lower import Lowering
from castile.planner.program import update_name
from castile.planner.search import Evaluated, Run
from castile.planner.space import placements, space_of
from castile.planner.strategy import Config

BUDGET = "2000"
# Of a plan's own time: at first, a plan that takes so much longer is kept with probability 1/e.
TEMPERATURE = 0.03
# The chains from the seeds share this part of the budget; one from the best plan found has the rest.
SEED_SHARE = 0.5
GO_ON = 0.75
RETRIES = 8


def search(run: Run) -> None:
    """A chain from every seed, then one from the best plan that these found."""
    moves = Moves.of(run.lowering)
    starts = list(run.seeds.values())
    for number, start in enumerate(starts):
        _chain(run, moves, start, SEED_SHARE * (number + 1) / len(starts))
    _chain(run, moves, run.best, 1.0)


def _chain(run: Run, moves: Moves, current: Evaluated, until: float) -> None:
    """Metropolis steps until that share of the budget is spent, ever cooler."""
    began = run.spent
    while (spent := run.spent) < until:
        heat = TEMPERATURE * (until - spent) / (until - began)
        # Drawn before the plan is known, so that a plan can be refused by a bound.
        threshold = current.energy * (1 - heat * math.log(1 - run.rng.random()))
        found = run.propose(moves.change(current.strategy.configs, run.rng), threshold)
        if found is not None and found.energy <= threshold:
            current = found


@dataclass
class Moves:
    """Random changes to the Configs of a graph's nodes.

    groups       names of nodes that may change together: of one kind, or at one place of a repeated block
    neighbours   by name: nodes that share a tensor, and the axes that lie along each other
    """

    nodes: dict[str, Node]
    names: list[str]
    updates: list[str]
    num_procs: int
    groups: list[list[str]]
    neighbours: dict[str, list[tuple[str, dict[str, str]]]] = field(default_factory=dict)

    @classmethod
    def of(cls, lowering: Lowering) -> Moves:
        graph = lowering.piece
        updates = [update_name(p.name) for p in graph.params]
        nodes = {**graph.nodes, **{name: lowering.names.optional[name] for name in updates}}
        return cls(nodes, list(graph.nodes), updates, lowering.machine.num_procs, _groups(graph), _neighbours(graph))

    def change(self, configs: Mapping[str, Config], rng: random.Random) -> dict[str, Config]:
        """The Configs with one move made; most moves that change nothing are made again."""
        for _ in range(RETRIES):
            changed = dict(configs)
            self._move(changed, rng)
            if changed != configs:
                break
        return changed

    def _move(self, configs: dict[str, Config], rng: random.Random) -> None:
        moves: list[Callable[[dict[str, Config], random.Random], None]] = [self._one, self._spread]
        moves += [self._group] if self.groups else []
        moves += [self._update] if self.updates and self.num_procs > 1 else []
        rng.choice(moves)(configs, rng)

    def _one(self, configs: dict[str, Config], rng: random.Random) -> None:
        """One node gets any Config."""
        name = rng.choice(self.names)
        configs[name] = space_of(self.nodes[name], self.num_procs).draw(rng)

    def _group(self, configs: dict[str, Config], rng: random.Random) -> None:
        """All nodes of a group get one Config: any, or that of one of them."""
        group = rng.choice(self.groups)
        some = rng.choice(group)
        config = configs[some] if rng.random() < 0.5 else space_of(self.nodes[some], self.num_procs).draw(rng)
        configs.update(dict.fromkeys(group, config))

    def _spread(self, configs: dict[str, Config], rng: random.Random) -> None:
        """A node's layout goes over to a neighbour, from there perhaps to the next, and so on."""
        name = rng.choice(self.names)
        while self.neighbours[name]:
            other, axes = rng.choice(self.neighbours[name])
            if (config := self._alike(configs[name], other, axes, rng)) is None:
                return
            configs[other], name = config, other
            if rng.random() >= GO_ON:
                return

    def _update(self, configs: dict[str, Config], rng: random.Random) -> None:
        """Updates, of one parameter or of all, are cut in any way or lie where the parameter is used."""
        name = rng.choice(self.updates)
        drawn = None if rng.random() < 0.5 else space_of(self.nodes[name], self.num_procs).draw(rng)
        for one in self.updates if rng.random() < 0.25 else [name]:
            if drawn is None:
                configs.pop(one, None)
            elif (config := self._first_axis(one, drawn)) is not None:
                configs[one] = config if one != name else drawn

    def _first_axis(self, name: str, drawn: Config) -> Config | None:
        """A Config on the processors of `drawn`, cut along the first axis only; None where that is too short."""
        a, degree = self.nodes[name].alignment, len(drawn.procs)
        if a.extents[a.axes[0]] < degree:
            return None
        return Config({a.axes[0]: degree} if degree > 1 else {}, 1, drawn.procs)

    def _alike(self, config: Config, other: str, axes: dict[str, str], rng: random.Random) -> Config | None:
        """The Config of `other` that cuts what it shares as `config` does, on the same processors, if there is one."""
        a = self.nodes[other].alignment
        split = {axes[axis]: degree for axis, degree in config.split.items() if axis in axes and degree > 1}
        if any(axis in a.frozen or a.extents[axis] < degree for axis, degree in split.items()):
            return None
        split = {axis: split[axis] for axis in a.axes if axis in split}
        parts = math.prod(split.values())
        if parts == config.num_parts:
            return Config(split, config.replicas, config.procs)
        wanted = set(config.procs)
        fitting = [p for p in placements(parts, self.num_procs) if set(p.procs) == wanted]
        if not fitting:
            return None
        placed = rng.choice(fitting)
        return Config(split, placed.replicas, placed.procs)


def _groups(graph: Graph) -> list[list[str]]:
    """Nodes of one kind, and nodes whose names differ in numbers only; groups of two or more."""
    found: dict[object, list[str]] = {}
    for name, node in graph.nodes.items():
        a = node.alignment
        kind = (node.op.name, node.op.cost_settings, tuple(a.extents.items()), a.frozen)
        found.setdefault(kind, []).append(name)
        found.setdefault((kind, re.sub(r"\d+", "#", name)), []).append(name)
    return list({tuple(group): group for group in found.values() if len(group) > 1}.values())


def _neighbours(graph: Graph) -> dict[str, list[tuple[str, dict[str, str]]]]:
    """By name: the nodes that touch the same tensor (not a parameter), and what the axes of it are called there."""
    touching: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for name, node in graph.nodes.items():
        a = node.alignment
        arrays = (*zip(node.inputs, a.operands), *zip(node.outputs, a.results))
        for tensor, operand in arrays:
            if not graph.tensors[tensor].param:
                touching.setdefault(tensor, []).append((name, tuple(dim[0] for dim in operand.dims if dim)))
    found: dict[str, list[tuple[str, dict[str, str]]]] = {name: [] for name in graph.nodes}
    for users in touching.values():
        for name, dims in users:
            found[name] += [(other, dict(zip(dims, theirs))) for other, theirs in users if other != name]
    return found

"""Moves: random changes to a plan, of one node or of several that belong together.

They do not know what a plan costs.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from castile.planner.choices.neighbours import neighbours_of
from castile.planner.choices.pins import pinned
from castile.planner.choices.space import placements, space_of
from castile.planner.choices.spaces import Spaces
from castile.planner.graph import Graph, Node
from castile.planner.lower import Lowering
from castile.planner.step.program import accumulate_name, fetch_name, update_name
from castile.planner.strategy import Config

Configs = dict[str, Config]
# The nodes beside a node, each with what the axes of the one are called at the other.
Beside = list[tuple[str, dict[str, str]]]

# What is left of names is the same at one place of repeated blocks.
NUMBERS = re.compile(r"\d+")

RETRIES = 8
# The probability with which what spreads to a neighbour spreads on from there.
GO_ON = 0.75
# The probability with which nodes that move together take the Config that one of them has, not a new one.
COPY = 0.5
# The probabilities with which all parameters move, or those of one place in repeated blocks; else it is one.
ALL, FAMILY = 0.2, 0.4
# Where nodes go from their processors: to a half of them, to others, to them and as many others.
ELSEWHERE = ("lower", "upper", "others", "twice")
# What is kept where of a parameter: as it is used (all-reduce); its update cut in any way; its update and state in
# pieces (ZeRO-1); its gradient too (ZeRO-2); itself in pieces, and fetched for its uses once a step.
KEEPINGS = ("used", "drawn", "pieces", "accumulated", "fetched")


@dataclass
class Moves:
    """Random changes to the Configs of a graph's nodes.

    spaces       the Configs that nodes may have, with pins or unequal processors; all on equal ones by default
    groups       names of nodes that may change together: of one kind, or at one place of a repeated block
    neighbours   by name: nodes that share a tensor, and the axes that lie along each other
    shared       for each parameter of several users: those, and by name what lies along the parameter's axes
    families     by parameter: those of one shape at one place of repeated blocks, it among them
    """

    lowering: Lowering
    nodes: dict[str, Node]
    names: list[str]
    users: dict[str, str]
    groups: list[list[str]]
    neighbours: dict[str, Beside]
    shared: list[dict[str, Beside]]
    families: dict[str, list[str]]
    spaces: Spaces | None = None

    @classmethod
    def of(cls, lowering: Lowering, spaces: Spaces | None = None) -> Moves:
        graph, templates = lowering.piece, lowering.templates
        users = {t: n.name for n in reversed(graph.nodes.values()) for t in n.inputs if graph.tensors[t].param}
        nodes = {**lowering.names.optional, **graph.nodes}
        return cls(
            lowering, nodes, list(graph.nodes), users, groups_of(graph, templates.cost_kind),
            _beside(graph, templates.node_kind), _shared(graph), _families(graph), spaces,
        )  # fmt: skip

    @property
    def num_procs(self) -> int:
        return self.lowering.machine.num_procs

    @property
    def procs(self) -> tuple[int, ...]:
        """The processors that may be used."""
        return self.spaces.procs if self.spaces is not None else tuple(range(self.num_procs))

    def change(self, configs: Mapping[str, Config], rng: random.Random) -> Configs:
        """The Configs with one move made; most moves that change nothing are made again."""
        kinds = self.kinds()
        for _ in range(RETRIES):
            changed = dict(configs)
            rng.choice(kinds)(changed, rng)
            if self.spaces is not None:
                changed = pinned(changed, self.spaces.pins)
            if changed != configs:
                break
        return changed

    def kinds(self) -> list[Callable[[Configs, random.Random], None]]:
        """The moves that this graph and machine have room for."""
        several = len(self.procs) > 1
        moves: list[Callable[[Configs, random.Random], None]] = [self.one, self.spread]
        moves += [self.group] if self.groups else []
        moves += [self.use] if self.shared else []
        moves += [self.turn, self.region] if several else []
        moves += [self.keep] if several and self.families else []
        return moves

    def one(self, configs: Configs, rng: random.Random) -> None:
        """One node gets any Config."""
        name = rng.choice(self.names)
        configs[name] = self._drawn(name, rng)

    def group(self, configs: Configs, rng: random.Random) -> None:
        """All nodes of a group get one Config: any, or that of one of them."""
        group = rng.choice(self.groups)
        some = rng.choice(group)
        config = configs[some] if rng.random() < COPY else self._drawn(some, rng)
        configs.update(dict.fromkeys(group, config))

    def use(self, configs: Configs, rng: random.Random) -> None:
        """All users of a parameter get one layout of it: any that one of them may have, or has."""
        users = rng.choice(self.shared)
        name = rng.choice(sorted(users))
        if rng.random() >= COPY:
            configs[name] = self._drawn(name, rng)
        for other, axes in users[name]:
            if (config := self._like_neighbour(configs[name], other, axes, rng)) is not None:
                configs[other] = config

    def spread(self, configs: Configs, rng: random.Random) -> None:
        """A node's layout goes over to a neighbour, from there perhaps to the next, and so on."""
        name = rng.choice(self.names)
        while self.neighbours[name]:
            other, axes = rng.choice(self.neighbours[name])
            if (config := self._like_neighbour(configs[name], other, axes, rng)) is None:
                return
            configs[other], name = config, other
            if rng.random() >= GO_ON:
                return

    def turn(self, configs: Configs, rng: random.Random) -> None:
        """A node, or a group, has two processors swapped or goes some processors on."""
        names = rng.choice(self.groups) if self.groups and rng.random() < COPY else [rng.choice(self.names)]
        free = list(self.procs)
        if rng.random() < 0.5:
            p, q = rng.sample(free, 2)
            to = {**dict(zip(free, free)), p: q, q: p}
        else:
            by = rng.randrange(1, len(free))
            to = dict(zip(free, free[by:] + free[:by]))
        for name in names:
            old = configs[name]
            configs[name] = Config(old.split, old.replicas, tuple(to.get(p, p) for p in old.procs))

    def region(self, configs: Configs, rng: random.Random) -> None:
        """Nodes that follow a node in the graph's order, as far as they are on its processors, go elsewhere with it."""
        first = rng.randrange(len(self.names))
        last = first + int(len(self.names) ** rng.random())
        where, way, away = rng.choice(ELSEWHERE), rng.random(), rng.random()
        procs = set(configs[self.names[first]].procs)
        for name in self.names[first:last]:
            if set(configs[name].procs) == procs:
                configs[name] = self._elsewhere(name, configs[name], where, way, away)

    def keep(self, configs: Configs, rng: random.Random) -> None:
        """A parameter, or several, is kept, summed and updated elsewhere: moves of its fetch, accumulate and update."""
        every = list(self.families)
        param, chance = rng.choice(every), rng.random()
        params = every if chance < ALL else self.families[param] if chance < ALL + FAMILY else [param]
        keeping = rng.choice(KEEPINGS if self.lowering.mode == "train" else KEEPINGS[:3])
        for name in params:
            for of in (update_name, accumulate_name, fetch_name):
                configs.pop(of(name), None)
        drawn = self._drawn(update_name(param), rng)
        used = self.lowering.configs(self.lowering.plan(configs)) if keeping == "fetched" else {}
        for name in params:
            if keeping == "drawn" and name in self.families[param]:
                configs[update_name(name)] = drawn
            elif keeping in ("pieces", "accumulated", "fetched"):
                pieces = self._pieces(name, configs[self.users[name]].procs)
                configs[update_name(name)] = pieces
                if keeping == "accumulated" and accumulate_name(name) in self.nodes:
                    configs[accumulate_name(name)] = self._as_its_update(name, accumulate_name(name), pieces)
                if keeping == "fetched":
                    configs[fetch_name(name)] = self._as_its_update(name, fetch_name(name), used[update_name(name)])

    def _elsewhere(self, name: str, old: Config, where: str, way: float, away: float) -> Config:
        """A Config on half of the processors, on others or on twice as many, cut alike but for one axis; else the old.

        way, away   which axis is cut less or more, and which of the others, in [0, 1)
        """
        here, free = sorted(set(old.procs)), list(self.procs)
        # Where processors are named several times, or not all may be used, what is half of them is not told.
        if len(here) < len(old.procs) or len(here) > len(free) or not set(here) <= set(free):
            return old
        blocks = [free[n : n + len(here)] for n in range(0, len(free) - len(here) + 1, len(here))]
        others = [block for block in blocks if not set(block) & set(here)]
        if where == "others":
            to = dict(zip(here, others[int(away * len(others))])) if others else {p: p for p in here}
            return Config(old.split, old.replicas, tuple(to[p] for p in old.procs))
        by = 2 if where == "twice" else 1 / 2
        degrees = {**old.split, "": old.replicas}
        a = self.nodes[name].alignment
        able = [x for x, n in degrees.items() if n > 1 and n * by % 1 == 0 and n * by <= a.extents.get(x, n * by)]
        if not able or (where == "twice" and not others):
            return old
        axis = able[int(way * len(able))]
        degrees[axis] = int(degrees[axis] * by)
        half = len(here) // 2
        procs = {"lower": here[:half], "upper": here[half:]}.get(where) or sorted(
            here + others[int(away * len(others))]
        )
        replicas = degrees.pop("")
        return Config({x: n for x, n in degrees.items() if n > 1}, replicas, tuple(procs))

    def _pieces(self, param: str, procs: tuple[int, ...]) -> Config:
        """A parameter's update in as many pieces as its users' processors, along its longest axis that may be cut."""
        a = self.nodes[update_name(param)].alignment
        every = sorted(set(procs))
        longest = max((axis for axis in a.axes if axis not in a.frozen), key=lambda axis: a.extents[axis], default="")
        degree = min(len(every), a.extents.get(longest, 1))
        return Config({longest: degree} if degree > 1 else {}, 1, tuple(every[:degree]))

    def _as_its_update(self, param: str, other: str, config: Config) -> Config:
        """The Config of a parameter's fetch or accumulate that lies as one of its update does."""
        ours, theirs = (self.nodes[n].alignment.operands[0].axes for n in (update_name(param), other))
        axes = dict(zip(ours, theirs, strict=True))
        return Config({axes[axis]: degree for axis, degree in config.split.items()}, config.replicas, config.procs)

    def _drawn(self, name: str, rng: random.Random) -> Config:
        space = space_of(self.nodes[name], self.num_procs) if self.spaces is None else self.spaces[name]
        return space.draw(rng)

    def _like_neighbour(self, config: Config, other: str, axes: dict[str, str], rng: random.Random) -> Config | None:
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


def groups_of(graph: Graph, kind: Callable[[Node], int]) -> list[list[str]]:
    """Nodes of one kind, and nodes whose names differ in numbers only; groups of two or more.

    kind   equal for nodes that cost alike
    """
    found: dict[object, list[str]] = {}
    for name, node in graph.nodes.items():
        found.setdefault(kind(node), []).append(name)
        found.setdefault((kind(node), NUMBERS.sub("#", name)), []).append(name)
    return list({tuple(group): group for group in found.values() if len(group) > 1}.values())


def _beside(graph: Graph, kind: Callable[[Node], int]) -> dict[str, Beside]:
    """By name: the nodes that touch the same tensor (not a parameter), and what the axes of it are called there."""
    names, pairs = list(graph.nodes), neighbours_of(graph, kind)
    found: dict[str, Beside] = {name: [] for name in names}
    for node, other, way in zip(pairs.node.tolist(), pairs.other.tolist(), pairs.way.tolist(), strict=True):
        found[names[node]].append((names[other], pairs.along[way]))
    return found


def _shared(graph: Graph) -> list[dict[str, Beside]]:
    """The users of each parameter that has several: by name the others, and what its axes along it are called there."""
    users: dict[str, dict[str, tuple[str, ...]]] = {}
    for name, node in graph.nodes.items():
        for tensor, operand in zip(node.inputs, node.alignment.operands, strict=True):
            if graph.tensors[tensor].param:
                users.setdefault(tensor, {})[name] = tuple(dim[0] for dim in operand.dims)
    kinds: dict[object, int] = {}
    several = {tuple(of): of for of in users.values() if len(of) > 1}
    return [_beside_each(graph, of, kinds) for of in several.values()]


def _beside_each(graph: Graph, users: Mapping[str, tuple[str, ...]], kinds: dict[object, int]) -> dict[str, Beside]:
    """By user of a parameter the others, and which axes lie along each other: all of them where the two are of one
    kind, which get a number in `kinds`, else those of the parameter."""
    ways = {dims: number for number, dims in enumerate(dict.fromkeys(users.values()))}
    along = [[dict(zip(dims, theirs, strict=True)) for theirs in ways] for dims in ways]
    every, axes = [], {}
    for name, dims in users.items():
        a = graph.nodes[name].alignment
        kind = kinds.setdefault((graph.nodes[name].op, tuple(a.extents.items())), len(kinds))
        axes[kind] = {axis: axis for axis in a.axes}
        every.append((name, kind, ways[dims]))
    return {
        name: [(other, axes[kind] if kind == like else along[way][how]) for other, like, how in every if other != name]
        for name, kind, way in every
    }


def _families(graph: Graph) -> dict[str, list[str]]:
    """By name of a parameter: those of its shape whose names differ from its own in numbers only."""
    found: dict[object, list[str]] = {}
    for param in graph.params:
        found.setdefault((param.shape, NUMBERS.sub("#", param.name)), []).append(param.name)
    return {name: family for family in found.values() for name in family}

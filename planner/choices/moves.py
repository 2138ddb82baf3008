"""Moves: random changes to the Configs of one node, or of several nodes that belong together.

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
# The neighbours of a node, each with a map from the node's axes to the neighbour's.
Neighbourhood = list[tuple[str, dict[str, str]]]

# Nodes at the same place of repeated blocks have the same name but for its numbers.
NUMBERS = re.compile(r"\d+")

RETRIES = 8
# The probability with which a layout that spread to a neighbour spreads on from there.
SPREAD_ON = 0.75
# The probability with which nodes that move together take the Config that one of them has, not a new one.
COPY = 0.5
# The probabilities with which all parameters move, or those at one place of repeated blocks; else one parameter moves.
ALL, FAMILY = 0.2, 0.4
# Where nodes move from their processors: to a half of them, to as many others, to them and as many others.
TARGETS = ("lower", "upper", "others", "twice")
# How a parameter is stored: as it is used (all-reduce); its update cut in any way; its update and state sharded
# (ZeRO-1); its gradient too (ZeRO-2); itself sharded, and fetched for its uses once a step.
STORAGES = ("used", "drawn", "pieces", "accumulated", "fetched")


@dataclass
class Moves:
    """Random changes to the Configs of a graph's nodes.

    users        by parameter the first node that reads it
    spaces       the Configs that nodes may have, with pins or unequal processors; by default all on equal processors
    groups       names of nodes that may change together: of one kind, or at one place of repeated blocks
    neighbours   by name of a node: the nodes that share a tensor with it, other than a parameter
    shared       for each parameter of several users: by name of a user the other users
    families     by parameter: all of one shape at its place of repeated blocks, itself among them
    """

    lowering: Lowering
    nodes: dict[str, Node]
    names: list[str]
    users: dict[str, str]
    groups: list[list[str]]
    neighbours: dict[str, Neighbourhood]
    shared: list[dict[str, Neighbourhood]]
    families: dict[str, list[str]]
    spaces: Spaces | None = None

    @classmethod
    def of(cls, lowering: Lowering, spaces: Spaces | None = None) -> Moves:
        graph, templates = lowering.piece, lowering.templates
        users = {t: n.name for n in reversed(graph.nodes.values()) for t in n.inputs if graph.tensors[t].param}
        nodes = {**lowering.names.optional, **graph.nodes}
        return cls(
            lowering, nodes, list(graph.nodes), users, groups_of(graph, templates.cost_kind),
            _neighbourhoods(graph, templates.node_kind), _shared(graph), _families(graph), spaces,
        )  # fmt: skip

    @property
    def num_procs(self) -> int:
        return self.lowering.machine.num_procs

    @property
    def procs(self) -> tuple[int, ...]:
        """The processors that may be used."""
        return self.spaces.procs if self.spaces is not None else tuple(range(self.num_procs))

    def change(self, configs: Mapping[str, Config], rng: random.Random) -> Configs:
        """The Configs after one random move. A move that changes nothing is drawn again, up to RETRIES times."""
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
        """The kinds of moves that are possible for this graph and machine."""
        has_several = len(self.procs) > 1
        moves: list[Callable[[Configs, random.Random], None]] = [self.change_node, self.spread]
        moves += [self.change_group] if self.groups else []
        moves += [self.change_users] if self.shared else []
        moves += [self.permute_procs, self.relocate] if has_several else []
        moves += [self.change_storage] if has_several and self.families else []
        return moves

    def change_node(self, configs: Configs, rng: random.Random) -> None:
        """Give one node any Config."""
        name = rng.choice(self.names)
        configs[name] = self._drawn(name, rng)

    def change_group(self, configs: Configs, rng: random.Random) -> None:
        """Give all nodes of a group one Config: any, or that of one of them."""
        group = rng.choice(self.groups)
        member = rng.choice(group)
        config = configs[member] if rng.random() < COPY else self._drawn(member, rng)
        configs.update(dict.fromkeys(group, config))

    def change_users(self, configs: Configs, rng: random.Random) -> None:
        """Give all users of a parameter one layout of it: any that one of them may have, or that one of them has."""
        users = rng.choice(self.shared)
        name = rng.choice(sorted(users))
        if rng.random() >= COPY:
            configs[name] = self._drawn(name, rng)
        for other, axes in users[name]:
            if (config := self._like_neighbour(configs[name], other, axes, rng)) is not None:
                configs[other] = config

    def spread(self, configs: Configs, rng: random.Random) -> None:
        """Copy a node's layout to a neighbour, from there perhaps to the next, and so on."""
        name = rng.choice(self.names)
        while self.neighbours[name]:
            other, axes = rng.choice(self.neighbours[name])
            if (config := self._like_neighbour(configs[name], other, axes, rng)) is None:
                return
            configs[other], name = config, other
            if rng.random() >= SPREAD_ON:
                return

    def permute_procs(self, configs: Configs, rng: random.Random) -> None:
        """Swap two processors of a node or a group, or rotate its processors."""
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

    def relocate(self, configs: Configs, rng: random.Random) -> None:
        """Move a stretch of nodes in the graph's order to other processors: those on the same ones as the first."""
        first = rng.randrange(len(self.names))
        last = first + int(len(self.names) ** rng.random())
        target, which_axis, which_block = rng.choice(TARGETS), rng.random(), rng.random()
        procs = set(configs[self.names[first]].procs)
        for name in self.names[first:last]:
            if set(configs[name].procs) == procs:
                configs[name] = self._relocated(name, configs[name], target, which_axis, which_block)

    def change_storage(self, configs: Configs, rng: random.Random) -> None:
        """Change where a parameter, or several, is stored, summed and updated: its fetch, accumulate and update."""
        every = list(self.families)
        param, chance = rng.choice(every), rng.random()
        params = every if chance < ALL else self.families[param] if chance < ALL + FAMILY else [param]
        storage = rng.choice(STORAGES if self.lowering.mode == "train" else STORAGES[:3])
        for name in params:
            for name_for in (update_name, accumulate_name, fetch_name):
                configs.pop(name_for(name), None)
        drawn = self._drawn(update_name(param), rng)
        used = self.lowering.configs(self.lowering.plan(configs)) if storage == "fetched" else {}
        for name in params:
            if storage == "drawn" and name in self.families[param]:
                configs[update_name(name)] = drawn
            elif storage in ("pieces", "accumulated", "fetched"):
                sharded = self._sharded(name, configs[self.users[name]].procs)
                configs[update_name(name)] = sharded
                if storage == "accumulated" and accumulate_name(name) in self.nodes:
                    configs[accumulate_name(name)] = self._like_update(name, accumulate_name(name), sharded)
                if storage == "fetched":
                    configs[fetch_name(name)] = self._like_update(name, fetch_name(name), used[update_name(name)])

    def _relocated(self, name: str, old: Config, target: str, which_axis: float, which_block: float) -> Config:
        """A Config on half of the processors, on others or on twice as many, with one degree halved or doubled; the old
        one where there is none.

        which_axis, which_block   in [0, 1): the axis whose degree changes, and the block of other processors
        """
        here, free = sorted(set(old.procs)), list(self.procs)
        # Half of the processors is not defined where one has several parts, or where not all may be used.
        if len(here) < len(old.procs) or len(here) > len(free) or not set(here) <= set(free):
            return old
        blocks = [free[n : n + len(here)] for n in range(0, len(free) - len(here) + 1, len(here))]
        others = [block for block in blocks if not set(block) & set(here)]
        if target == "others":
            to = dict(zip(here, others[int(which_block * len(others))])) if others else {p: p for p in here}
            return Config(old.split, old.replicas, tuple(to[p] for p in old.procs))
        factor = 2 if target == "twice" else 1 / 2
        degrees = {**old.split, "": old.replicas}
        extents = self.nodes[name].alignment.extents
        axes = [
            x for x, n in degrees.items() if n > 1 and n * factor % 1 == 0 and n * factor <= extents.get(x, n * factor)
        ]
        if not axes or (target == "twice" and not others):
            return old
        axis = axes[int(which_axis * len(axes))]
        degrees[axis] = int(degrees[axis] * factor)
        half = len(here) // 2
        if target == "twice":
            procs = sorted(here + others[int(which_block * len(others))])
        else:
            procs = here[:half] if target == "lower" else here[half:]
        replicas = degrees.pop("")
        return Config({x: n for x, n in degrees.items() if n > 1}, replicas, tuple(procs))

    def _sharded(self, param: str, procs: tuple[int, ...]) -> Config:
        """A parameter's update cut along its longest axis, a piece on each of its user's processors if long enough."""
        a = self.nodes[update_name(param)].alignment
        every = sorted(set(procs))
        longest = max((axis for axis in a.axes if axis not in a.frozen), key=lambda axis: a.extents[axis], default="")
        degree = min(len(every), a.extents.get(longest, 1))
        return Config({longest: degree} if degree > 1 else {}, 1, tuple(every[:degree]))

    def _like_update(self, param: str, other: str, config: Config) -> Config:
        """The Config of a parameter's fetch or accumulate with the layout of its update under `config`."""
        ours, theirs = (self.nodes[n].alignment.operands[0].axes for n in (update_name(param), other))
        axes = dict(zip(ours, theirs, strict=True))
        return Config({axes[axis]: degree for axis, degree in config.split.items()}, config.replicas, config.procs)

    def _drawn(self, name: str, rng: random.Random) -> Config:
        space = space_of(self.nodes[name], self.num_procs) if self.spaces is None else self.spaces[name]
        return space.draw(rng)

    def _like_neighbour(self, config: Config, other: str, axes: dict[str, str], rng: random.Random) -> Config | None:
        """The Config of `other` that cuts the shared tensor as `config` does, on the same processors, if there is one.

        axes   from the axes of the node of `config` to those of `other`
        """
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
    """Groups of two or more nodes: those of one kind, and of these those whose names differ in numbers only.

    kind   equal for nodes of equal cost
    """
    found: dict[object, list[str]] = {}
    for name, node in graph.nodes.items():
        found.setdefault(kind(node), []).append(name)
        found.setdefault((kind(node), NUMBERS.sub("#", name)), []).append(name)
    return list({tuple(group): group for group in found.values() if len(group) > 1}.values())


def _neighbourhoods(graph: Graph, kind: Callable[[Node], int]) -> dict[str, Neighbourhood]:
    """By name of a node: the nodes that touch the same tensor, other than a parameter."""
    names, pairs = list(graph.nodes), neighbours_of(graph, kind)
    found: dict[str, Neighbourhood] = {name: [] for name in names}
    for node, other, way in zip(pairs.node.tolist(), pairs.other.tolist(), pairs.way.tolist(), strict=True):
        found[names[node]].append((names[other], pairs.along[way]))
    return found


def _shared(graph: Graph) -> list[dict[str, Neighbourhood]]:
    """For each parameter of several users: by name of a user the other users."""
    users: dict[str, dict[str, tuple[str, ...]]] = {}
    for name, node in graph.nodes.items():
        for tensor, operand in zip(node.inputs, node.alignment.operands, strict=True):
            if graph.tensors[tensor].param:
                users.setdefault(tensor, {})[name] = tuple(dim[0] for dim in operand.dims)
    kinds: dict[object, int] = {}
    several = {tuple(named): named for named in users.values() if len(named) > 1}
    return [_other_users(graph, named, kinds) for named in several.values()]


def _other_users(
    graph: Graph, users: Mapping[str, tuple[str, ...]], kinds: dict[object, int]
) -> dict[str, Neighbourhood]:
    """By user of a parameter the others. Users of one kind map all of their axes, others those of the parameter.

    users   by name, with the axes along the parameter's dims
    kinds   the number of each operator with its extents; new ones are added
    """
    uses = {dims: number for number, dims in enumerate(dict.fromkeys(users.values()))}
    axes_between = [[dict(zip(dims, theirs, strict=True)) for theirs in uses] for dims in uses]
    rows, all_axes = [], {}
    for name, dims in users.items():
        a = graph.nodes[name].alignment
        kind = kinds.setdefault((graph.nodes[name].op, tuple(a.extents.items())), len(kinds))
        all_axes[kind] = {axis: axis for axis in a.axes}
        rows.append((name, kind, uses[dims]))
    return {
        name: [
            (other, all_axes[kind] if kind == other_kind else axes_between[use][other_use])
            for other, other_kind, other_use in rows
            if other != name
        ]
        for name, kind, use in rows
    }


def _families(graph: Graph) -> dict[str, list[str]]:
    """By name of a parameter: the parameters of its shape whose names differ from its own in numbers only."""
    found: dict[object, list[str]] = {}
    for param in graph.params:
        found.setdefault((param.shape, NUMBERS.sub("#", param.name)), []).append(param.name)
    return {name: family for family in found.values() for name in family}

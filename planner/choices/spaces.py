"""Spaces of all nodes of a graph: the Configs that pins allow, with unequal shares where processors are unequal.

They do not know which Configs are good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from castile.planner.choices import shares
from castile.planner.choices.pins import Need, Pins
from castile.planner.choices.space import (
    Placement,
    Space,
    degrees,
    free_axes,
    placements,
    space_of,
    splits,
    splits_into,
)
from castile.planner.cost import CostModel
from castile.planner.graph import Node
from castile.planner.lower import Lowering


class Spaces(Mapping[str, Space]):
    """By name the Configs of every node that a plan may have: the graph's nodes, updates, accumulators and fetches.

    pins   constraints that every Config of a space meets; None for none
    Where processors are of several kinds a space also has Configs that give fast ones more parts than slow ones.
    """

    def __init__(self, lowering: Lowering, cost: CostModel, pins: Pins | None = None) -> None:
        self.nodes: dict[str, Node] = {**lowering.names.optional, **lowering.piece.nodes}
        self.pins = pins
        self.num_procs = lowering.machine.num_procs
        self._speeds = shares.speeds(lowering, cost)
        self._are_equal = len(set(self._speeds)) == 1
        self._known: dict[object, Space] = {}

    def __getitem__(self, name: str) -> Space:
        node, need = self.nodes[name], self.pins.need(name) if self.pins is not None else None
        if need is None and self._are_equal:
            return space_of(node, self.num_procs)
        need = need or Need({}, None, tuple(range(self.num_procs)))
        key = free_axes(node), tuple(need.degrees.items()), need.replicas, need.procs
        if key not in self._known:
            self._known[key] = _space(free_axes(node), need, self.num_procs, self._speeds)
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def procs(self) -> tuple[int, ...]:
        """The processors that any node may use."""
        return tuple(range(self.num_procs)) if self.pins is None else self.pins.procs

    @property
    def most_parts(self) -> int:
        """The largest number of parts into which a plan may cut a node."""
        return max(prod(split.values()) for name in self for split in self[name].splits)


def _space(free: Sequence[tuple[str, int]], need: Need, num_procs: int, speeds: Sequence[float]) -> Space:
    """The Configs of a node that meet a need: every split with at most a part a processor, and those with shares."""
    room = max(1, len(need.procs) // (need.replicas or 1))
    several = sorted({degree for n in (num_procs, room) for degree in degrees(n) if degree <= room})
    shared = shares.spread([speeds[p] for p in need.procs]) if need.replicas in (None, 1) else {}
    found = splits(free, room, several, need.degrees)
    for num_parts in shared:
        found += [split for split in splits_into(free, num_parts, need.degrees) if split not in found]
    placed = {n: _placements(n, need, num_procs, shared.get(n, ())) for n in {prod(s.values()) for s in found}}
    return Space(found, placed.__getitem__)


def _placements(num_parts: int, need: Need, num_procs: int, shared: Sequence[int]) -> tuple[Placement, ...]:
    """The placements of so many parts: those on all processors that are allowed, those on the allowed ones as if there
    were no others, and that by shares.
    """
    procs, allowed = need.procs, set(need.procs)
    found: dict[Placement, None] = {}
    if num_parts <= num_procs:
        found |= {p: None for p in placements(num_parts, num_procs) if allowed.issuperset(p.procs)}
    if num_parts <= len(procs) < num_procs:
        near = placements(num_parts, len(procs))
        found |= {Placement(p.replicas, tuple(procs[n] for n in p.procs)): None for p in near}
    if shared:
        found[Placement(1, tuple(procs[n] for n in shared))] = None
    fitting = [p for p in found if need.replicas in (None, p.replicas)]
    if fitting:
        return tuple(fitting)
    # More parts than processors, or replicas that fill no block: round robin over the processors.
    replicas = need.replicas or 1
    return (Placement(replicas, tuple(procs[n % len(procs)] for n in range(num_parts * replicas))),)

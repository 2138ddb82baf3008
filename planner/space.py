"""Spaces: the Configs that a search may give to a node.

It does not know which of them are any good.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

from castile.planner.graph import Node
from castile.planner.strategy import Config

# On more processors than this a degree divides their number: uneven degrees gain little there, and there are many.
MOST_UNEVEN_PROCS = 16


class Placement(NamedTuple):
    """Where the parts of a node and their replicas lie; procs as in a Config."""

    replicas: int
    procs: tuple[int, ...]


class Space:
    """All Configs of a node on `num_procs` processors that a search considers, each once.

    A split is any combination of degrees over the axes that may be cut, with a product of at most num_procs. Parts and
    replicas fill a block of processors: one that divides num_procs and begins at a multiple of its size, or, of an
    uneven size and without replicas, one that begins at 0. Replicas of a part lie side by side, or a block apart.
    """

    def __init__(self, extents: Mapping[str, int], num_procs: int) -> None:
        self.num_procs = num_procs
        self.splits = _splits(tuple(extents.items()), num_procs)
        self._parts = [_product(split) for split in self.splits]
        self._ends = list(accumulate(len(placements(parts, num_procs)) for parts in self._parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: int) -> Config:
        if not 0 <= number < len(self):
            raise IndexError(number)
        at = bisect_right(self._ends, number)
        first = self._ends[at - 1] if at else 0
        placed = placements(self._parts[at], self.num_procs)[number - first]
        return Config(dict(self.splits[at]), placed.replicas, placed.procs)

    def draw(self, rng: random.Random) -> Config:
        """Any Config, all with the same probability."""
        return self[rng.randrange(len(self))]

    @cached_property
    def configs(self) -> list[Config]:
        """All of them; the splits in a fixed order, each with all its placements."""
        return [self[number] for number in range(len(self))]


def space_of(node: Node, num_procs: int) -> Space:
    """The space of a node; nodes with the same axes share one."""
    a = node.alignment
    free = tuple((axis, a.extents[axis]) for axis in a.axes if axis not in a.frozen and a.extents[axis] > 1)
    return _space(free, num_procs)


@lru_cache(maxsize=1024)
def _space(free: tuple[tuple[str, int], ...], num_procs: int) -> Space:
    return Space(dict(free), num_procs)


@lru_cache(maxsize=1024)
def placements(num_parts: int, num_procs: int) -> tuple[Placement, ...]:
    """Where that many parts may lie."""
    if num_procs % num_parts:
        return (Placement(1, tuple(range(num_parts))),)
    found: dict[Placement, None] = {}
    for replicas in _divisors(num_procs // num_parts):
        size = num_parts * replicas
        for start in range(0, num_procs, size):
            found[Placement(replicas, tuple(range(start, start + size)))] = None
            apart = [start + part + copy * num_parts for part in range(num_parts) for copy in range(replicas)]
            found[Placement(replicas, tuple(apart))] = None
    return tuple(found)


def _splits(extents: tuple[tuple[str, int], ...], room: int) -> list[dict[str, int]]:
    """Every combination of degrees whose product is at most `room`, without degrees of 1."""
    allowed = range(1, room + 1) if room <= MOST_UNEVEN_PROCS else _divisors(room)
    found: list[tuple[int, dict[str, int]]] = [(1, {})]
    for axis, extent in extents:
        found = [
            (product * degree, {**split, axis: degree} if degree > 1 else split)
            for product, split in found
            for degree in allowed
            if degree <= extent and product * degree <= room
        ]
    return [split for _, split in found]


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _product(split: Mapping[str, int]) -> int:
    product = 1
    for degree in split.values():
        product *= degree
    return product

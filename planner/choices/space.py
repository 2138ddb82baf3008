"""Spaces: the Configs that a search may give to a node.

They do not know which of them are any good.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import accumulate
from math import prod
from typing import NamedTuple

from castile.planner.axes import Alignment
from castile.planner.graph import Node
from castile.planner.strategy import Config

# On more processors than this degrees divide their number: others are many and gain little there.
MOST_UNEVEN_PROCS = 16


class Placement(NamedTuple):
    """The replicas of each part of a node and the processors, in the order of a Config's `procs`."""

    replicas: int
    procs: tuple[int, ...]


class Space:
    """All Configs of a node with one of some splits and one of the placements of its number of parts, each once.

    splits   degrees by axis, without degrees of 1
    placed   the placements of a number of parts, those on the first processors first
    """

    def __init__(self, splits: Sequence[dict[str, int]], placed: Callable[[int], Sequence[Placement]]) -> None:
        self.splits, self.placed = list(splits), placed
        self._parts = [prod(split.values()) for split in self.splits]
        counts = {parts: len(placed(parts)) for parts in set(self._parts)}
        self._ends = list(accumulate(map(counts.__getitem__, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: int) -> Config:
        if not 0 <= number < len(self):
            raise IndexError(number)
        at = bisect_right(self._ends, number)
        first = self._ends[at - 1] if at else 0
        placed = self.placed(self._parts[at])[number - first]
        return Config(dict(self.splits[at]), placed.replicas, placed.procs)

    def draw(self, rng: random.Random) -> Config:
        """Any Config, all with the same probability."""
        return self[rng.randrange(len(self))]

    @cached_property
    def configs(self) -> list[Config]:
        """All Configs: the splits in order, each with all its placements."""
        return [self[number] for number in range(len(self))]


def space_of(node: Node, num_procs: int) -> Space:
    """The space of a node on equal processors, all of which it may use; nodes with the same axes share one.

    A split is any combination of degrees over the axes that may be cut, with a product of at most num_procs, in each of
    its `placements`.
    """
    return _space_of(node.alignment, num_procs)


@lru_cache(maxsize=4096)
def _space_of(a: Alignment, num_procs: int) -> Space:
    # No degree exceeds the number of processors, so longer axes have the same space.
    return _space(tuple([(axis, min(extent, num_procs)) for axis, extent in _free(a)]), num_procs)


def free_axes(node: Node) -> tuple[tuple[str, int], ...]:
    """The axes that may be cut, with their extents, in the order of the axis line."""
    return _free(node.alignment)


def _free(a: Alignment) -> tuple[tuple[str, int], ...]:
    return tuple([(axis, a.extents[axis]) for axis in a.axes if axis not in a.frozen and a.extents[axis] > 1])


@lru_cache(maxsize=1024)
def _space(free: tuple[tuple[str, int], ...], num_procs: int) -> Space:
    return Space(splits(free, num_procs, degrees(num_procs)), partial(placements, num_procs=num_procs))


@lru_cache(maxsize=1024)
def placements(num_parts: int, num_procs: int) -> tuple[Placement, ...]:
    """The placements of a number of parts, each on at least as many processors.

    Parts and replicas fill a block of processors: one that divides num_procs and begins at a multiple of its size, or,
    of an uneven size and without replicas, one that begins at 0. Replicas of a part lie side by side, or a block apart.
    """
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


def degrees(num_procs: int) -> list[int]:
    """The degrees to which an axis may be cut on a number of processors."""
    return list(range(1, num_procs + 1)) if num_procs <= MOST_UNEVEN_PROCS else _divisors(num_procs)


def splits(
    extents: Sequence[tuple[str, int]], room: int, degrees: Sequence[int], fixed: Mapping[str, int] | None = None
) -> list[dict[str, int]]:
    """Every combination of degrees over the axes whose product is at most `room`; degrees of 1 are left out.

    extents   the axes with their extents
    fixed     degrees that are given, and count in the product
    """
    fixed = fixed or {}
    found: list[tuple[int, dict[str, int]]] = [(prod(fixed.values()), {})]
    for axis, extent in extents:
        if axis in fixed:
            cut = {axis: fixed[axis]} if fixed[axis] > 1 else {}
            found = [(product, {**split, **cut}) for product, split in found]
            continue
        fitting = {
            product: [d for d in degrees if d == 1 or (d <= extent and product * d <= room)]
            for product in {product for product, _ in found}
        }
        found = [
            (product * degree, {**split, axis: degree} if degree > 1 else split)
            for product, split in found
            for degree in fitting[product]
        ]
    return [split for _, split in found]


def splits_into(
    extents: Sequence[tuple[str, int]], num_parts: int, fixed: Mapping[str, int] | None = None
) -> list[dict[str, int]]:
    """Every combination of degrees whose product is `num_parts`."""
    fixed = fixed or {}
    found: list[tuple[int, dict[str, int]]] = [(num_parts, {})]
    for axis, extent in extents:
        found = [
            (left // degree, {**split, axis: degree} if degree > 1 else split)
            for left, split in found
            for degree in ((fixed[axis],) if axis in fixed else _divisors(left))
            if degree <= extent and left % degree == 0
        ]
    return [split for left, split in found if left == 1]


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]

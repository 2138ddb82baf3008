"""The Configs that a sketch may give to each node, numbered; nodes of the same axes and extents share them.

It does not know what a Config costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from castile.planner.graph import Node
from castile.planner.sketch.arrays import Spaces
from castile.planner.space import Space
from castile.planner.strategy import Config

# Sums of as many salts as there are names in a plan fit into 64 bits.
MOST_SALT = 1 << 44
Entry = tuple[int, int, tuple[int, ...]]  # the number of a split, replicas, procs


class SpaceTable:
    """All Configs where these are few, else all splits on all processors and some placements on fewer.

    spaces    those of `nodes`, one node of each
    known     for each of them Configs that must be there
    axes      of each space, in order, those that some split cuts
    width     how many axes a space has at most
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        spaces: Sequence[Space],
        num_procs: int,
        known: Sequence[Iterable[Config]],
        most: int,
    ) -> None:
        self.splits: list[list[dict[str, int]]] = []
        self._entries: list[list[Entry]] = []
        self._numbers: list[dict[Entry, int]] = []
        self._split_numbers: list[dict[tuple[tuple[str, int], ...], int]] = []
        for space, configs in zip(spaces, known, strict=True):
            self._add(space.splits, _chosen(space, num_procs, most), configs)
        cut = [{axis for split in splits for axis in split} for splits in self.splits]
        self.axes = [[x for x in node.alignment.axes if x in of] for node, of in zip(nodes, cut, strict=True)]
        sizes = [len(entries) for entries in self._entries]
        self.first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.degrees = sorted({1, *(d for splits in self.splits for split in splits for d in split.values())})

    @property
    def width(self) -> int:
        return max(1, *map(len, self.axes))

    def _add(self, splits: Sequence[dict[str, int]], entries: Sequence[Entry], known: Iterable[Config]) -> None:
        mine, numbers = list(splits), {_key(split): n for n, split in enumerate(splits)}
        found = dict.fromkeys(entries)
        for config in known:
            key = _key(config.split)
            if key not in numbers:
                numbers[key] = len(mine)
                mine.append(dict(key))
            found[numbers[key], config.replicas, config.procs] = None
        self.splits.append(mine)
        self._split_numbers.append(numbers)
        self._entries.append(list(found))
        self._numbers.append({entry: n for n, entry in enumerate(found)})

    def find(self, space: int, config: Config) -> int | None:
        """The number of a Config, None where there is none."""
        split = self._split_numbers[space].get(_key(config.split))
        number = None if split is None else self._numbers[space].get((split, config.replicas, config.procs))
        return None if number is None else int(self.first[space]) + number

    def config(self, space: int, number: int) -> Config:
        """The Config of a number."""
        split, replicas, procs = self._entries[space][number - int(self.first[space])]
        return Config(dict(self.splits[space][split]), replicas, procs)

    def arrays(self) -> Spaces:
        """All of it, flat."""
        rank = np.zeros(max(self.degrees) + 1, np.int64)
        rank[self.degrees] = np.arange(len(self.degrees))
        rows = []
        for axes, splits, entries in zip(self.axes, self.splits, self._entries, strict=True):
            table = np.ones((len(splits), self.width), np.int64)
            for n, split in enumerate(splits):
                for axis, degree in split.items():
                    table[n, axes.index(axis)] = degree
            rows.append(table[[entry[0] for entry in entries]])
        every_degree = np.concatenate(rows)
        every = [entry for entries in self._entries for entry in entries]
        replicas = np.array([entry[1] for entry in every], np.int64)
        sizes = np.array([len(entry[2]) for entry in every], np.int64)
        crowds: dict[frozenset[int], int] = {}
        crowd = [crowds.setdefault(frozenset(entry[2]), len(crowds)) for entry in every]
        crew, crew_sizes = _crews(crowd, [entry[2] for entry in every])
        return Spaces(
            self.first, np.array([entry[0] for entry in every], np.int64), sizes // replicas, replicas,
            np.array(crowd, np.int64), np.array(crew, np.int64),
            np.concatenate([[0], np.cumsum(crew_sizes)]).astype(np.int64),
            np.random.default_rng(0).integers(MOST_SALT, size=len(crew_sizes)),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            np.fromiter((p for entry in every for p in entry[2]), np.int64, int(sizes.sum())), every_degree,
            rank[every_degree],
        )  # fmt: skip


def _crews(crowd: Sequence[int], procs: Sequence[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """Numbers of the sets of processors, apart where one is named several times; how many names each has."""
    numbers: dict[object, int] = {}
    sizes: list[int] = []
    found = []
    for of, named in zip(crowd, procs, strict=True):
        key = of if len(set(named)) == len(named) else tuple(sorted(named))
        if key not in numbers:
            numbers[key] = len(sizes)
            sizes.append(len(named))
        found.append(numbers[key])
    return found, sizes


def _key(split: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((axis, degree) for axis, degree in split.items() if degree > 1))


def _chosen(space: Space, num_procs: int, most: int) -> list[Entry]:
    """At most about so many Configs: those on all processors first, the others at even distances."""
    everywhere: list[Entry] = []
    others: list[Entry] = []
    for number, split in enumerate(space.splits):
        for placed in space.placed(prod(split.values())):
            entry = (number, placed.replicas, placed.procs)
            (everywhere if len(placed.procs) == num_procs else others).append(entry)
    room = max(0, most - len(everywhere))
    return everywhere[:most] + others[:: max(1, -(-len(others) // room)) if room else len(others) + 1]

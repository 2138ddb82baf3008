"""The Configs that a sketch may give to each node, numbered; nodes of the same axes and extents share them.

It does not know what a Config costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from castile.planner.graph import Node
from castile.planner.sketch.arrays import Spaces
from castile.planner.space import Placement, Space
from castile.planner.strategy import Config

# Sums of as many salts as there are names in a plan fit into 64 bits.
MOST_SALT = 1 << 44


class _Placed(NamedTuple):
    """Where so many parts may lie: the placements, numbered from `begin` on, those on all processors and the others."""

    placements: Sequence[Placement]
    begin: int
    everywhere: np.ndarray
    elsewhere: np.ndarray


class SpaceTable:
    """All Configs where these are few, else all splits on all processors and some placements on fewer.

    spaces    those of `nodes`, one node of each
    known     for each of them Configs that must be there
    splits    of each space
    axes      of each space, in order, those that some split cuts
    degree    of each space, int64[splits, axes]
    cuts      of each space and axis: its degrees above 1
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
        self.axes: list[list[str]] = []
        self.degree: list[np.ndarray] = []
        self._spaces, self._num_procs = spaces, num_procs
        # By entry: the number of its split and that of its placement.
        self._entries: list[np.ndarray] = []
        self._placements: list[Placement] = []
        self._placed: dict[int, _Placed] = {}
        self._numbers: dict[int, dict[Placement, int]] = {}
        self._others: dict[Placement, int] = {}
        self._found: list[dict[Config, int | None]] = [{} for _ in nodes]
        for node, space, configs in zip(nodes, spaces, known, strict=True):
            self._add(node, space, list(configs), most)
        self.first = np.concatenate([[0], np.cumsum([len(entries) for entries in self._entries])]).astype(np.int64)
        self.cuts = [[tuple(sorted({*column} - {1})) for column in degree.T.tolist()] for degree in self.degree]
        self.degrees = sorted({1}.union(*chain.from_iterable(self.cuts)))

    @property
    def width(self) -> int:
        return max(1, *map(len, self.axes))

    def _add(self, node: Node, space: Space, known: Sequence[Config], most: int) -> None:
        cut = set[str]().union(*space.splits)
        cut.update(axis for config in known for axis, degree in config.split.items() if degree > 1)
        axes = [axis for axis in node.alignment.axes if axis in cut]
        splits, degree = list(space.splits), _table(space.splits, axes)
        entries = self._chosen(space, degree, most)
        for config in known:
            row = [config.degree(axis) for axis in axes]
            split = next(iter((degree == row).all(axis=1).nonzero()[0].tolist()), len(splits))
            if split == len(splits):
                splits.append({axis: d for axis, d in sorted(config.split.items()) if d > 1})
                degree = np.concatenate([degree, [row]])
            placement = self._placement(space, split, config)
            if placement is None:
                placement = self._others[Placement(config.replicas, config.procs)] = len(self._placements)
                self._placements.append(Placement(config.replicas, config.procs))
            if not (entries == (split, placement)).all(axis=1).any():
                entries = np.concatenate([entries, [(split, placement)]])
        self.axes.append(axes)
        self.splits.append(splits)
        self.degree.append(degree)
        self._entries.append(entries)

    def _chosen(self, space: Space, degree: np.ndarray, most: int) -> np.ndarray:
        """At most about so many entries: those on all processors first, the others at even distances."""
        num_parts, of_split = np.unique(degree.prod(axis=1), return_inverse=True)
        placed = [self._of(space, count) for count in num_parts.tolist()]
        first = _pairs([of.everywhere for of in placed], of_split)
        others = _pairs([of.elsewhere for of in placed], of_split)
        room = max(0, most - len(first))
        step = max(1, -(-len(others) // room)) if room else len(others) + 1
        return np.concatenate([first[:most], others[::step]])

    def _of(self, space: Space, num_parts: int) -> _Placed:
        """Where so many parts may lie: the same for most spaces, and numbered once."""
        placements, begin = space.placed(num_parts), len(self._placements)
        if id(placements) not in self._placed:
            is_everywhere = np.array([len(p.procs) == self._num_procs for p in placements])
            numbers = begin + np.arange(len(placements))
            of = _Placed(placements, begin, numbers[is_everywhere], numbers[~is_everywhere])
            self._placed[id(placements)] = of
            self._placements += placements
        return self._placed[id(placements)]

    def _placement(self, space: Space, split: int, config: Config) -> int | None:
        """The number of a Config's placement: one of its space's, or of those that only known Configs have."""
        placement = Placement(config.replicas, config.procs)
        if split < len(space.splits):
            of = self._of(space, config.num_parts)
            if of.begin not in self._numbers:
                self._numbers[of.begin] = {p: of.begin + n for n, p in enumerate(of.placements)}
            if placement in self._numbers[of.begin]:
                return self._numbers[of.begin][placement]
        return self._others.get(placement)

    def find(self, space: int, config: Config) -> int | None:
        """The number of a Config, None where there is none."""
        known = self._found[space]
        if config not in known:
            known[config] = self._find(space, config)
        return known[config]

    def _find(self, space: int, config: Config) -> int | None:
        axes, degree = self.axes[space], self.degree[space]
        if any(d > 1 and axis not in axes for axis, d in config.split.items()):
            return None
        for split in (degree == [config.degree(axis) for axis in axes]).all(axis=1).nonzero()[0].tolist():
            placement = self._placement(self._spaces[space], split, config)
            same = (self._entries[space] == (split, placement)).all(axis=1) if placement is not None else np.zeros(0)
            if same.any():
                return int(self.first[space] + same.argmax())
        return None

    def config(self, space: int, number: int) -> Config:
        """The Config of a number."""
        split, placement = self._entries[space][number - int(self.first[space])].tolist()
        placed = self._placements[placement]
        return Config(dict(self.splits[space][split]), placed.replicas, placed.procs)

    def arrays(self) -> Spaces:
        """All of it, flat."""
        rank = np.zeros(max(self.degrees) + 1, np.int64)
        rank[self.degrees] = np.arange(len(self.degrees))
        every_degree = np.ones((int(self.first[-1]), self.width), np.int64)
        for first, entries, degree in zip(self.first[:-1].tolist(), self._entries, self.degree, strict=True):
            every_degree[first : first + len(entries), : degree.shape[1]] = degree[entries[:, 0]]
        split, placement = np.concatenate(self._entries).T
        used, which = np.unique(placement, return_inverse=True)
        every = [self._placements[n] for n in used.tolist()]
        crowds: dict[frozenset[int], int] = {}
        crowd = np.array([crowds.setdefault(frozenset(p.procs), len(crowds)) for p in every], np.int64)
        copies, size = np.array([(p.replicas, len(p.procs)) for p in every], np.int64).T
        procs = np.fromiter(chain.from_iterable(p.procs for p in every), np.int64, int(size.sum()))
        crew, num_names = _crews(crowd.tolist(), [p.procs for p in every])
        sizes, replicas = size[which], copies[which]
        return Spaces(
            self.first, split.copy(), sizes // replicas, replicas, crowd[which], np.array(crew, np.int64)[which],
            np.concatenate([[0], np.cumsum(num_names)]).astype(np.int64),
            np.random.default_rng(0).integers(MOST_SALT, size=len(num_names)),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            procs[_runs((np.cumsum(size) - size)[which], sizes)], every_degree, rank[every_degree],
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


def _table(splits: Sequence[dict[str, int]], axes: Sequence[str]) -> np.ndarray:
    """int64[splits, axes]: degrees."""
    flat = [split.get(axis, 1) for axis in axes for split in splits]
    return np.array(flat, np.int64).reshape(len(axes), len(splits)).T


def _pairs(which: Sequence[np.ndarray], of_split: np.ndarray) -> np.ndarray:
    """int64[..., 2]: of each split what there is of `which` for it, after its own number."""
    counts = np.array([len(some) for some in which], np.int64)
    each = counts[of_split]
    flat = np.concatenate(which)
    return np.stack(
        [np.repeat(np.arange(len(of_split)), each), flat[_runs((np.cumsum(counts) - counts)[of_split], each)]], axis=1
    )


def _runs(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """One after the other the numbers from each first on, so many of each."""
    return np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))

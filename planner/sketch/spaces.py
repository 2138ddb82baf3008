"""The Configs that a sketch may give to each node, numbered; nodes of the same axes and extents share them.

A Config is a split (a degree for each axis) and a placement (replicas and processors). Where a space has few, all are
there; else all splits on all processors, and some of the placements on fewer. It does not know what a Config costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, count, repeat
from typing import NamedTuple

import numpy as np

from castile.planner.choices.space import Placement, Space
from castile.planner.graph import Node
from castile.planner.lowering.ragged import ranges, row_pointers
from castile.planner.sketch.arrays import Spaces
from castile.planner.strategy import Config

# So that sums of as many salts as a plan names processors fit into 64 bits.
MOST_SALT = 1 << 44
# Placements are numbered below this.
MOST_PLACEMENTS = 1 << 32

# Stands for the number of a Config that was not looked for yet.
UNASKED = -1


class _Placed(NamedTuple):
    """The placements of so many parts, numbered from `begin` on: those on all processors, and the others."""

    placements: Sequence[Placement]
    begin: int
    everywhere: np.ndarray
    elsewhere: np.ndarray


class _Splits(NamedTuple):
    """The splits of a space; int64[splits, axes] of their degrees; the number of a split by its degrees; and the
    entries (pairs of a split and a placement) that are chosen.
    """

    each: list[dict[str, int]]
    degree: np.ndarray
    numbers: dict[tuple[int, ...], int]
    entries: np.ndarray


class SpaceTable:
    """The Configs of all spaces.

    spaces    those of `nodes`, one node of each
    known     for each of them Configs that must be there
    most      about so many Configs are chosen of a space
    splits    of each space
    axes      of each space, in order, those that some split cuts
    degree    of each space, int64[splits, axes]
    cuts      of each space and axis: its degrees above 1
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
        # By space: split * MOST_PLACEMENTS + placement, for each Config.
        self._entries: list[np.ndarray] = []
        # By space the number of a split by the degrees of all axes.
        self._split_of: list[dict[tuple[int, ...], int]] = []
        self._placements: list[Placement] = []
        self._placed: dict[int, _Placed] = {}
        self._cut = {id(space): set[str]().union(*space.splits) for space in {id(s): s for s in spaces}.values()}
        self._tables: dict[tuple[int, tuple[str, ...]], _Splits] = {}
        self._numbers: dict[int, dict[Placement, int]] = {}
        self._others: dict[Placement, int] = {}
        self._found: list[dict[Config, int | None]] = [{} for _ in nodes]
        self._configs: dict[int, Config] = {}
        for node, space, configs in zip(nodes, spaces, known, strict=True):
            self._add(node, space, list(configs), most)
        self.first = row_pointers([len(entries) for entries in self._entries])
        cuts = {id(d): [tuple(sorted({*column} - {1})) for column in d.T.tolist()] for d in self.degree}
        self.cuts = [cuts[id(degree)] for degree in self.degree]
        self.degrees = sorted({1}.union(*chain.from_iterable(self.cuts)))

    @property
    def width(self) -> int:
        return max(1, *map(len, self.axes))

    def _add(self, node: Node, space: Space, known: Sequence[Config], most: int) -> None:
        cut = self._cut[id(space)].union([axis for c in known for axis, degree in c.split.items() if degree > 1])
        axes = [axis for axis in node.alignment.axes if axis in cut]
        splits, degree, numbers, entries = self._table(space, tuple(axes), most)
        rows = [tuple([config.degree(axis) for axis in axes]) for config in known]
        if more := {row: config for row, config in zip(rows, known, strict=True) if row not in numbers}:
            splits = splits + [{axis: d for axis, d in sorted(c.split.items()) if d > 1} for c in more.values()]
            numbers = {**numbers, **dict(zip(more, range(len(numbers), len(splits))))}
            degree = np.array(list(numbers), np.int64).reshape(len(splits), len(axes))
        for row, config in zip(rows, known, strict=True):
            split = numbers[row]
            placement = self._placement(space, split, config)
            if placement is None:
                placement = self._others[Placement(config.replicas, config.procs)] = len(self._placements)
                self._placements.append(Placement(config.replicas, config.procs))
            entry = split * MOST_PLACEMENTS + placement
            if not (entries == entry).any():
                entries = np.append(entries, entry)
        self.axes.append(axes)
        self.splits.append(splits)
        self.degree.append(degree)
        self._split_of.append(numbers)
        self._entries.append(entries)

    def _table(self, space: Space, axes: tuple[str, ...], most: int) -> _Splits:
        """What a space has without known Configs: the same for all nodes that share it."""
        key = id(space), axes
        if key not in self._tables:
            rows = [tuple(map(split.get, axes, repeat(1))) for split in space.splits]
            numbers, degree = dict(zip(rows, count())), np.array(rows, np.int64).reshape(len(rows), len(axes))
            self._tables[key] = _Splits(space.splits, degree, numbers, self._chosen(space, degree, most))
        return self._tables[key]

    def _chosen(self, space: Space, degree: np.ndarray, most: int) -> np.ndarray:
        """About `most` entries at most: those on all processors first, of the others some at even distances."""
        counts = degree.prod(axis=1)
        placed = [self._of(space, count) for count in sorted({*counts.tolist()})]
        of_split = np.unique(counts, return_inverse=True)[1]
        first = _pairs([of.everywhere for of in placed], of_split)
        others = _pairs([of.elsewhere for of in placed], of_split)
        room = max(0, most - len(first))
        step = max(1, -(-len(others) // room)) if room else len(others) + 1
        return np.concatenate([first[:most], others[::step]])

    def _of(self, space: Space, num_parts: int) -> _Placed:
        """The placements of so many parts in a space: the same for most spaces, and numbered once."""
        placements, begin = space.placed(num_parts), len(self._placements)
        if id(placements) not in self._placed:
            is_everywhere = np.array([len(p.procs) == self._num_procs for p in placements])
            numbers = begin + np.arange(len(placements))
            of = _Placed(placements, begin, numbers[is_everywhere], numbers[~is_everywhere])
            self._placed[id(placements)] = of
            self._placements += placements
        return self._placed[id(placements)]

    def _placement(self, space: Space, split: int, config: Config) -> int | None:
        """The number of a Config's placement: one of its space's, or one that only known Configs have; None for
        neither.
        """
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
        found = known.get(config, UNASKED)
        if found == UNASKED:
            found = known[config] = self._find(space, config)
        return found

    def _find(self, space: int, config: Config) -> int | None:
        axes = self.axes[space]
        if any(d > 1 and axis not in axes for axis, d in config.split.items()):
            return None
        split = self._split_of[space].get(tuple([config.degree(axis) for axis in axes]))
        placement = self._placement(self._spaces[space], split, config) if split is not None else None
        if split is None or placement is None:
            return None
        same = (self._entries[space] == split * MOST_PLACEMENTS + placement).nonzero()[0]
        return int(self.first[space] + same[0]) if len(same) else None

    def config(self, space: int, number: int) -> Config:
        """The Config of a number: one object, as plans are known by the hashes of their Configs."""
        if number not in self._configs:
            split, placement = divmod(int(self._entries[space][number - int(self.first[space])]), MOST_PLACEMENTS)
            placed = self._placements[placement]
            self._configs[number] = Config(dict(self.splits[space][split]), placed.replicas, placed.procs)
        return self._configs[number]

    def arrays(self) -> Spaces:
        """All Configs as flat arrays."""
        rank = np.zeros(max(self.degrees) + 1, np.int64)
        rank[self.degrees] = np.arange(len(self.degrees))
        every_degree = np.ones((int(self.first[-1]), self.width), np.int64)
        for first, entries, degree in zip(self.first[:-1].tolist(), self._entries, self.degree, strict=True):
            every_degree[first : first + len(entries), : degree.shape[1]] = degree[entries // MOST_PLACEMENTS]
        split, placement = np.divmod(np.concatenate(self._entries), MOST_PLACEMENTS)
        used = np.flatnonzero(np.bincount(placement))
        which = np.searchsorted(used, placement)
        every = [self._placements[n] for n in used.tolist()]
        sets: dict[frozenset[int], int] = {}
        proc_set = np.array([sets.setdefault(frozenset(p.procs), len(sets)) for p in every], np.int64)
        copies, size = np.array([(p.replicas, len(p.procs)) for p in every], np.int64).T
        procs = np.fromiter(chain.from_iterable(p.procs for p in every), np.int64, int(size.sum()))
        bag, num_names = _bags(proc_set.tolist(), [p.procs for p in every])
        sizes, replicas = size[which], copies[which]
        return Spaces(
            self.first, split, sizes // replicas, replicas, proc_set[which], np.array(bag, np.int64)[which],
            row_pointers(num_names),
            np.random.default_rng(0).integers(MOST_SALT, size=len(num_names)),
            row_pointers(sizes),
            procs[ranges((np.cumsum(size) - size)[which], sizes)], every_degree, rank[every_degree],
        )  # fmt: skip


def _bags(proc_set: Sequence[int], procs: Sequence[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """(the number of the bag of processors of each placement, how many names each bag has): a bag is the set of
    processors where none is named twice.
    """
    numbers: dict[object, int] = {}
    sizes: list[int] = []
    found = []
    for of, named in zip(proc_set, procs, strict=True):
        key = of if len(set(named)) == len(named) else tuple(sorted(named))
        if key not in numbers:
            numbers[key] = len(sizes)
            sizes.append(len(named))
        found.append(numbers[key])
    return found, sizes


def _pairs(which: Sequence[np.ndarray], of_split: np.ndarray) -> np.ndarray:
    """int64[...]: of each split all entries with the placements that `which` has for it."""
    counts = np.array([len(some) for some in which], np.int64)
    each = counts[of_split]
    flat = np.concatenate(which)
    placement = flat[ranges((np.cumsum(counts) - counts)[of_split], each)]
    return np.repeat(np.arange(len(of_split)) * MOST_PLACEMENTS, each) + placement

"""Nearness: which holders of a box are nearest to a processor, and which of these serves it, in round robin.

Holders are sorted once into the groups of links that they are in, so that a query looks at one group a level, not at
all holders. It does not know what they hold. Processors are slots 0..n-1 of a template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle

# The group of a processor at each level, the nearest level first; at the last level all are in one.
Groups = Callable[[int], Sequence[int]]


@dataclass(eq=False)
class Near:
    """A set of nearest holders, in the order of the holders; equal sets are one object.

    among   the same processors as a set
    turns   the round robin over them
    """

    procs: tuple[int, ...]
    among: frozenset[int]
    turns: Iterator[int]


class Nearness:
    """Finds nearest holders among processors in these groups."""

    def __init__(self, groups: Groups) -> None:
        self._turns = Turns(groups)
        self._holders: dict[tuple[int, ...], Holders] = {}

    def holders(self, procs: tuple[int, ...]) -> Holders:
        """The holders of a box, in order."""
        if procs not in self._holders:
            self._holders[procs] = Holders(procs, self._turns)
        return self._holders[procs]


class Turns:
    """The round robins over sets of nearest holders, shared by all boxes.

    places   of a processor (level, group), the nearest level first
    """

    def __init__(self, groups: Groups) -> None:
        self.places = cache(lambda proc: tuple(enumerate(groups(proc))))
        self._near: dict[tuple[int, ...], Near] = {}

    def near(self, procs: tuple[int, ...]) -> Near:
        """The set of these processors, with its one round robin for all boxes."""
        if procs not in self._near:
            self._near[procs] = Near(procs, frozenset(procs), cycle(procs))
        return self._near[procs]


class Holders:
    """The holders of a box, in order."""

    def __init__(self, procs: tuple[int, ...], turns: Turns) -> None:
        self.procs, self._turns = procs, turns
        within: dict[tuple[int, int], list[int]] = {}
        for proc in procs:
            for place in turns.places(proc):
                within.setdefault(place, []).append(proc)
        self._within = {place: turns.near(tuple(each)) for place, each in within.items()}
        self._among = frozenset(procs)
        self._asked: dict[int, int] = {}

    def nearest(self, proc: int) -> Near:
        """The holders nearest to a processor: the processor itself if it is one."""
        if proc in self._among:
            return self._turns.near((proc,))
        for place in self._turns.places(proc):
            if place in self._within:
                return self._within[place]
        raise AssertionError(f"no level joins {proc} with any of {self.procs}")

    def asked(self, proc: int, at: int | None) -> int:
        """The holder that serves a processor: always the same one; processors with the same nearest ones take turns.

        at   the processor's position among the holders of another part of what it reads: the holder at that position
             here is preferred, if it is near, so that readers and holders form a group
        """
        if proc not in self._asked:
            self._asked[proc] = self._chosen(self.nearest(proc), at)
        return self._asked[proc]

    def _chosen(self, near: Near, at: int | None) -> int:
        if at is not None and at < len(self.procs) and self.procs[at] in near.among:
            return self.procs[at]
        return next(near.turns)

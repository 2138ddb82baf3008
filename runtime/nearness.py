"""Nearness: who of those that hold something are nearest to a processor, and whose turn it is among them.

Holders are sorted once by the groups of links that they are in, so that who asks looks at as many groups as there are
levels, and not at all holders. It does not know what they hold. Processors are slots 0..n-1 of a template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle

# Of a processor its group at each level, the nearest level first; at the last level all are in one.
Groups = Callable[[int], Sequence[int]]


@dataclass(eq=False)
class Near:
    """Some who are nearest, in the order of the holders; one object for the same ones.

    turns   who is asked next, one after the other
    """

    procs: tuple[int, ...]
    among: frozenset[int]
    turns: Iterator[int]


class Nearness:
    """Who is near whom, of processors in these groups."""

    def __init__(self, groups: Groups) -> None:
        self._turns = Turns(groups)
        self._holders: dict[tuple[int, ...], Holders] = {}

    def holders(self, procs: tuple[int, ...]) -> Holders:
        """Those who hold the same, in order."""
        if procs not in self._holders:
            self._holders[procs] = Holders(procs, self._turns)
        return self._holders[procs]


class Turns:
    """Whose turn it is among those who are nearest to somebody, of processors in these groups.

    places   of a processor each level and its group there, the nearest first
    """

    def __init__(self, groups: Groups) -> None:
        self.places = cache(lambda proc: tuple(enumerate(groups(proc))))
        self._near: dict[tuple[int, ...], Near] = {}

    def near(self, procs: tuple[int, ...]) -> Near:
        """These as they are nearest to somebody, whatever they hold: all who have them near take them in turn."""
        if procs not in self._near:
            self._near[procs] = Near(procs, frozenset(procs), cycle(procs))
        return self._near[procs]


class Holders:
    """Who hold the same, in order."""

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
        """Those of them who are nearest to a processor: itself, if it is one."""
        if proc in self._among:
            return self._turns.near((proc,))
        for place in self._turns.places(proc):
            if place in self._within:
                return self._within[place]
        raise AssertionError(f"no level joins {proc} with any of {self.procs}")

    def asked(self, proc: int, at: int | None) -> int:
        """One of the nearest, the same whenever a processor asks; those that have the same ones near take them in turn.

        at   where the processor is among those who hold something else of what it reads: of those near it takes who is
             there among these, so that such readers and holders make a group
        """
        if proc not in self._asked:
            self._asked[proc] = self._chosen(self.nearest(proc), at)
        return self._asked[proc]

    def _chosen(self, near: Near, at: int | None) -> int:
        if at is not None and at < len(self.procs) and self.procs[at] in near.among:
            return self.procs[at]
        return next(near.turns)

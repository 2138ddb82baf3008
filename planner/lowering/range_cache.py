"""Caches results of parts by the ranges that were read to compute them: parts with equal such ranges share a result.

It does not know what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from castile.planner.op import Part

Result = TypeVar("Result")


class WatchedPart(Mapping[str, tuple[int, int]]):
    """A part that records which of its ranges are read."""

    def __init__(self, ranges: Mapping[str, tuple[int, int]]) -> None:
        self.ranges, self.looked_at = ranges, dict[str, tuple[int, int]]()

    def __getitem__(self, axis: str) -> tuple[int, int]:
        found = self.looked_at[axis] = self.ranges[axis]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)


class RangeCache(Generic[Result]):
    """Results of parts, shared by those with equal values of the ranges that were read.

    axes   whose ranges were read so far
    """

    def __init__(self) -> None:
        self.axes = set[str]()
        self._known: dict[tuple[str, ...], dict[tuple[tuple[int, int], ...], Result]] = {}

    def of(self, part: Part, find: Callable[[Part], Result]) -> Result:
        """The result for this part, computed by `find` if it is new."""
        for axes, known in self._known.items():
            ranges = tuple([part.ranges[axis] for axis in axes])
            if ranges in known:
                return known[ranges]
        watched = WatchedPart(part.ranges)
        result = find(Part(part.op, part.alignment, watched))
        self._known.setdefault(tuple(watched.looked_at), {})[tuple(watched.looked_at.values())] = result
        self.axes.update(watched.looked_at)
        return result

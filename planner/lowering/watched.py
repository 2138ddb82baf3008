"""What follows from a part, found once for all parts that are alike in the ranges at which one looks to find it.

It does not know what is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from castile.planner.op import Part

Result = TypeVar("Result")


class Watched(Mapping[str, tuple[int, int]]):
    """The ranges of a part, and which of them were looked at."""

    def __init__(self, ranges: Mapping[str, tuple[int, int]]) -> None:
        self.ranges, self.looked_at = ranges, dict[str, tuple[int, int]]()

    def __getitem__(self, axis: str) -> tuple[int, int]:
        found = self.looked_at[axis] = self.ranges[axis]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)


class Shared(Generic[Result]):
    """What follows from a part: the same for parts that are alike in the ranges at which one looks to find it.

    axes   of which one has looked at ranges so far
    """

    def __init__(self) -> None:
        self.axes = set[str]()
        self._known: dict[tuple[str, ...], dict[tuple[tuple[int, int], ...], Result]] = {}

    def of(self, part: Part, find: Callable[[Part], Result]) -> Result:
        """What follows from this one, by what finds it."""
        for axes, known in self._known.items():
            ranges = tuple([part.ranges[axis] for axis in axes])
            if ranges in known:
                return known[ranges]
        watched = Watched(part.ranges)
        result = find(Part(part.op, part.alignment, watched))
        self._known.setdefault(tuple(watched.looked_at), {})[tuple(watched.looked_at.values())] = result
        self.axes.update(watched.looked_at)
        return result

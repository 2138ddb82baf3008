"""The Pareto frontier of time and memory: the plans seen so far that no other one dominates.

It does not know what a plan is, nor who adds plans.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np


class Worth(Protocol):
    """What plans are compared by: seconds of a step, and peak bytes of each processor."""

    @property
    def seconds(self) -> float: ...

    @property
    def peak_bytes(self) -> tuple[int, ...]: ...


P = TypeVar("P")
W = TypeVar("W", bound=Worth)


@dataclass
class Frontier(Generic[W]):
    """The points that no other dominates in seconds and in bytes of the fullest processor.

    capacity   int64[P], bytes of each processor; points that exceed it are not kept
    points     by ascending seconds, and so by descending bytes
    """

    capacity: np.ndarray
    points: list[W] = field(default_factory=list)

    def add(self, worth: W) -> None:
        """Add a point that fits and that no other dominates or equals; drop those that it dominates."""
        if (np.asarray(worth.peak_bytes) > self.capacity).any():
            return
        seconds, nbytes = worth.seconds, max(worth.peak_bytes)
        at = bisect_left(self.points, (seconds, nbytes), key=lambda w: (w.seconds, max(w.peak_bytes)))
        if at < len(self.points) and _bytes_and_seconds(self.points[at]) == (nbytes, seconds):
            return
        if at and max(self.points[at - 1].peak_bytes) <= nbytes:
            return
        end = at
        while end < len(self.points) and max(self.points[end].peak_bytes) >= nbytes:
            end += 1
        self.points[at:end] = [worth]

    def dominates_by(self, worth: Worth, times: float) -> bool:
        """Whether some point is more than `times` better in both seconds and bytes."""
        seconds, nbytes = worth.seconds / times, max(worth.peak_bytes) / times
        return any(point.seconds < seconds and max(point.peak_bytes) < nbytes for point in self.points)

    def thinned(self, gain: float) -> list[W]:
        """The points thinned by the function below."""
        return thinned(self.points, lambda point: max(point.peak_bytes), gain)


def thinned(points: Sequence[P], nbytes: Callable[[P], int], gain: float) -> list[P]:
    """From the fastest point on, those that need less memory by a share `gain` than the one kept before; and always
    the smallest.
    """
    kept, smallest = list(points[:1]), points[:1]
    for point in points[1:]:
        if nbytes(point) <= (1 - gain) * nbytes(kept[-1]):
            kept.append(point)
        if nbytes(point) < nbytes(smallest[0]):
            smallest = [point]
    return [*kept, *(one for one in smallest if nbytes(one) < nbytes(kept[-1]))]


def _bytes_and_seconds(worth: Worth) -> tuple[int, float]:
    return max(worth.peak_bytes), worth.seconds

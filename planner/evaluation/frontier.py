"""The frontier of time and memory: of the plans that were seen those that no other beats in both.

It does not know plans, nor who sees them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np


class Worth(Protocol):
    """Seconds of a step, and the most bytes that live on each processor."""

    @property
    def seconds(self) -> float: ...

    @property
    def peak_bytes(self) -> tuple[int, ...]: ...


P = TypeVar("P")
W = TypeVar("W", bound=Worth)


@dataclass
class Frontier(Generic[W]):
    """Keeps what is not beaten in seconds and in bytes of the fullest processor, among what fits.

    capacity   bytes of each processor; what exceeds one is not kept
    points     by ascending seconds, and so by descending bytes
    """

    capacity: np.ndarray
    points: list[W] = field(default_factory=list)

    def add(self, worth: W) -> None:
        """Keep it, unless it does not fit or one that is kept is at least as good in both; drop those that it beats."""
        if (np.asarray(worth.peak_bytes) > self.capacity).any():
            return
        seconds, nbytes = worth.seconds, max(worth.peak_bytes)
        at = bisect_left(self.points, (seconds, nbytes), key=lambda w: (w.seconds, max(w.peak_bytes)))
        if at < len(self.points) and _bytes_and_seconds(self.points[at]) == (nbytes, seconds):
            return
        if at and max(self.points[at - 1].peak_bytes) <= nbytes:
            return
        beaten = at
        while beaten < len(self.points) and max(self.points[beaten].peak_bytes) >= nbytes:
            beaten += 1
        self.points[at:beaten] = [worth]

    def leaves_behind(self, worth: Worth, times: float) -> bool:
        """Whether it takes more than so many times as long as a point, and needs more than as many times its bytes."""
        seconds, nbytes = worth.seconds / times, max(worth.peak_bytes) / times
        return any(point.seconds < seconds and max(point.peak_bytes) < nbytes for point in self.points)

    def thinned(self, gain: float) -> list[W]:
        """What is left of the points by `thinned`."""
        return thinned(self.points, lambda point: max(point.peak_bytes), gain)


def thinned(points: Sequence[P], nbytes: Callable[[P], int], gain: float) -> list[P]:
    """From the fastest on those that need a share of `gain` less memory than the one before; always the smallest."""
    kept, smallest = list(points[:1]), points[:1]
    for point in points[1:]:
        if nbytes(point) <= (1 - gain) * nbytes(kept[-1]):
            kept.append(point)
        if nbytes(point) < nbytes(smallest[0]):
            smallest = [point]
    return [*kept, *(one for one in smallest if nbytes(one) < nbytes(kept[-1]))]


def _bytes_and_seconds(worth: Worth) -> tuple[int, float]:
    return max(worth.peak_bytes), worth.seconds

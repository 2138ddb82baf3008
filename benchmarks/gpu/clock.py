"""Seconds of work on a device by its own events: warmed up, over inputs that outgrow the cache, the median of rounds.

It does not know whose work it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

# Inputs rotate among copies that together are a few times the largest cache (60 MB on an H200).
ROTATING_BYTES = 200_000_000
_ROUND_SECONDS = 0.008
_ROUNDS = 5


def num_copies(nbytes: int) -> int:
    """How many copies of so many bytes of operands are rotated."""
    return max(1, min(8, -(-ROTATING_BYTES // max(1, nbytes))))


def seconds(calls: Sequence[Callable[[], Any]], events: Callable[[int], float]) -> float:
    """Seconds of one of `calls`, which do the same on copies of the operands.

    events(n) makes n calls, each copy in turn, and gives the seconds between an event before and one after them.
    """
    events(2 * len(calls))
    once = events(2) / 2
    number = int(min(100, max(3, _ROUND_SECONDS / max(once, 1e-7))))
    return median(events(number) / number for _ in range(_ROUNDS))

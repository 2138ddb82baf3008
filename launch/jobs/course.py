"""Course: how the best plan got better while it was looked for, in proposals and in time.

It does not know in which searches these were made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from castile.planner.evaluation.budget import clock
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.search import Progress
from castile.planner.searching.results import SearchResult


@dataclass
class Course:
    """What is told of searches, one after another, as one way down; each word of them goes on to `shown`."""

    shown: Progress | None
    num_proposals: int = 0
    passed: list[tuple[int, float, Evaluated]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = clock()

    def tell(self, spent: float, best: Evaluated, num_new: int) -> None:
        """A search's best plan is kept where it fits and is the best until now."""
        self.num_proposals += num_new
        if best.fits and (not self.passed or best.energy < self.passed[-1][2].energy):
            self.passed.append((self.num_proposals, clock() - self.began, best))
        if self.shown is not None:
            self.shown(spent, best, num_new)

    def ended(self, found: SearchResult) -> list[dict[str, Any]]:
        """Whenever there was a better plan: proposals and seconds until then, and what the plan takes; at last the plan
        that was found. Of better ones that were not to be had, as they cannot be packed, nothing is told.
        """
        last = (found.num_proposals, found.elapsed_seconds, found.evaluated)
        passed = [one for one in self.passed if one[2].energy > found.evaluated.energy]
        reached = next((one for one in self.passed if one[2].energy == found.evaluated.energy), last)
        return [
            {
                "num_proposals": number,
                "elapsed_seconds": seconds,
                "step_seconds": worth.seconds,
                "live_bytes": max(worth.peak_bytes),
            }
            for number, seconds, worth in [*passed, reached]
        ]

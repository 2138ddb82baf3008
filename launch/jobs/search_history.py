"""The history of a search: how the best plan improved, over proposals and time.

It does not know which searches it is of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from castile.planner.evaluation.budget import clock
from castile.planner.evaluation.evaluated import Evaluated
from castile.planner.search import Progress
from castile.planner.searching.results import SearchResult


@dataclass
class SearchHistory:
    """The joint history of consecutive searches; each report of theirs is passed on to `shown`."""

    shown: Progress | None
    num_proposals: int = 0
    passed: list[tuple[int, float, Evaluated]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = clock()

    def tell(self, spent: float, best: Evaluated, num_new: int) -> None:
        """Record a search's best plan if it fits and is the best so far."""
        self.num_proposals += num_new
        if best.fits and (not self.passed or best.energy < self.passed[-1][2].energy):
            self.passed.append((self.num_proposals, clock() - self.began, best))
        if self.shown is not None:
            self.shown(spent, best, num_new)

    def ended(self, found: SearchResult) -> list[dict[str, Any]]:
        """Each improvement: proposals and seconds until then, and the plan's step time; at last the plan that was
        found. Better plans that could not be packed are left out.
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

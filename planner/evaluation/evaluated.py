"""Evaluated: what the simulator says of a plan, and by what plans are ranked.

It does not know how plans are simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

from castile.planner.strategy import Strategy

# A plan that needs a hundredth more memory than there is counts as one that takes twice as long.
PENALTY = 100.0


@dataclass(frozen=True)
class Evaluated:
    """What the simulator says of a plan.

    seconds       of a step
    peak_bytes    of each processor: the most that live at one time, which no arena can undercut
    moved_bytes   over links between processors in a step, all together
    overflow      by which share the fullest processor exceeds its memory; 0 where the plan fits
    objective     by what it is ranked: "time", "latency" (seconds both) or "memory"
    num_tasks, num_collectives   of a step, on all processors
    """

    strategy: Strategy
    seconds: float
    peak_bytes: tuple[int, ...]
    moved_bytes: int
    overflow: float
    objective: str = "time"
    num_tasks: int = 0
    num_collectives: int = 0

    @property
    def fits(self) -> bool:
        return self.overflow == 0

    @property
    def rank(self) -> tuple[float, ...]:
        """Plans that fit come first, by their objective; then the others, by how much they exceed memory."""
        if self.objective == "memory":
            return (self.overflow, max(self.peak_bytes), self.seconds)
        return (self.overflow, self.seconds, max(self.peak_bytes))

    @property
    def energy(self) -> float:
        """Seconds or bytes, and for a plan that does not fit a penalty that leads back to those that do."""
        worth = max(self.peak_bytes) if self.objective == "memory" else self.seconds
        return worth * (1 + PENALTY * self.overflow)

"""Evaluated plans: the simulator's results for a plan, and how plans are ranked.

It does not know how plans are simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

from castile.planner.strategy import Strategy

# The energy of a plan that exceeds memory by 1 % is twice as high as if it fitted.
PENALTY = 100.0


@dataclass(frozen=True)
class Evaluated:
    """The simulator's results for a plan.

    seconds       of a step
    peak_bytes    the most bytes alive at one time on each processor, a lower bound of its arena
    moved_bytes   bytes sent between processors in a step
    overflow      the share by which the fullest processor exceeds its memory; 0 where the plan fits
    objective     "time", "latency" (both by seconds) or "memory"
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
        """A sort key: plans that fit come first, by their objective; then the others, by their overflow."""
        if self.objective == "memory":
            return (self.overflow, max(self.peak_bytes), self.seconds)
        return (self.overflow, self.seconds, max(self.peak_bytes))

    @property
    def energy(self) -> float:
        """Seconds or bytes, times a penalty for overflow, which leads searches back to plans that fit."""
        worth = max(self.peak_bytes) if self.objective == "memory" else self.seconds
        return worth * (1 + PENALTY * self.overflow)

"""METG: the minimum effective task granularity of Slaughter et al., SC 2020, from runs of tasks of several lengths.

It does not know what ran.
"""

from __future__ import annotations

from dataclasses import dataclass

EFFICIENCY = 0.5


@dataclass(frozen=True)
class Run:
    """A whole pattern: how many turns each task worked, and the wall time of all."""

    num_turns: int
    wall_seconds: float


@dataclass(frozen=True)
class Curve:
    """A pattern on a system: `num_tasks` tasks on `num_cores` cores, in runs of ever longer tasks."""

    num_tasks: int
    num_cores: int
    runs: tuple[Run, ...]

    def rate(self, run: Run) -> float:
        """Turns a second of all cores together."""
        return self.num_tasks * run.num_turns / run.wall_seconds

    @property
    def peak(self) -> float:
        """The best rate of any run."""
        return max(self.rate(run) for run in self.runs)

    def granularity(self, run: Run) -> float:
        """Seconds of a core for each task, what is not its work included."""
        return run.wall_seconds * self.num_cores / self.num_tasks


def metg(curve: Curve, peak: float) -> float | None:
    """The smallest granularity in seconds at which the rate is half of `peak`; None where no run reaches that.

    Between the two runs around it granularity is taken to grow by equal steps with the turns. Where the shortest tasks
    reach half of the peak already, theirs bounds it from above.
    """
    runs = sorted(curve.runs, key=lambda run: run.num_turns)
    # what a task would take at the efficiency that is asked for, less what it takes
    slack = [run.num_turns * curve.num_cores / (EFFICIENCY * peak) - curve.granularity(run) for run in runs]
    good = next((n for n in range(len(runs)) if min(slack[n:]) >= 0), None)
    if not good:
        return None if good is None else curve.granularity(runs[0])
    share = slack[good - 1] / (slack[good - 1] - slack[good])
    short, long = (curve.granularity(run) for run in runs[good - 1 : good + 1])
    return short + share * (long - short)

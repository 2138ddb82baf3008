"""Seen: a plan's step as it was simulated, from which follows what all processors do in all microbatches.

It does not know how plans are lowered or folded, nor who asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from castile.planner.evaluation.folding import Folded
from castile.planner.lower import Lowering
from castile.planner.simulate import Simulated
from castile.planner.simulation import repeats
from castile.planner.simulation.repeats import Cycle
from castile.planner.strategy import Strategy
from castile.runtime.task import NUM_LANES, Lane, TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

# Microbatches of more tasks than these all together take ten seconds and more to write out.
MOST_WRITTEN = 2**17


@dataclass(frozen=True, eq=False)
class Seen:
    """A plan that was simulated: T tasks of C processors, and when they would run.

    lowering    by which the tasks were made: of as many microbatches as are written out
    folded      which processors the C stand for, and what the tasks were before any came together
    number[T]   of which microbatch each task is, as `repeats.numbers` says
    tasks       with the prices of their own kinds of processors, in the plan's order
    simulated   of what is written out
    count[T]    for how many tasks of the whole step each stands
    peak_bytes  of each of the machine's processors
    cycle       what is gone through `times` times more than is written out, None where all is
    """

    strategy: Strategy
    lowering: Lowering
    folded: Folded
    number: np.ndarray
    tasks: TaskGraph
    simulated: Simulated
    count: np.ndarray
    peak_bytes: np.ndarray
    cycle: Cycle | None = None
    times: int = 0

    @property
    def is_all(self) -> bool:
        """Whether each processor and each task stands for itself alone."""
        return self.tasks.num_procs == len(self.role) and int(self.count.max(initial=1)) == 1

    @property
    def is_short(self) -> bool:
        """Whether not all microbatches are written out."""
        return self.cycle is not None

    @property
    def is_long(self) -> bool:
        """Whether its microbatches are too many to write all of them out."""
        return self.is_short and int(self.count.sum()) > MOST_WRITTEN

    @cached_property
    def timeline(self) -> Timeline:
        """When the tasks run in the whole step, what stands for several microbatches as long as all of them do."""
        timeline = self.simulated.timeline
        return timeline if self.cycle is None else repeats.stretched(timeline, self.cycle, self.times)

    @property
    def seconds(self) -> float:
        """What the whole step takes."""
        return self.timeline.seconds

    @property
    def num_microbatches(self) -> int:
        """How many are written out."""
        return self.strategy.microbatches - (self.times * self.cycle.microbatches if self.cycle else 0)

    @property
    def role(self) -> np.ndarray:
        """int64[P]: the processor of `tasks` that stands for each of the machine's."""
        return self.folded.proc_class

    @property
    def copies(self) -> np.ndarray:
        """int64[C]: for how many processors each of `tasks` stands."""
        return np.bincount(self.role, minlength=self.tasks.num_procs)

    @cached_property
    def busy_seconds(self) -> np.ndarray:
        """float64[C]: how long the compute lane of each processor of `tasks` works in the whole step."""
        owner = np.repeat(np.arange(self.tasks.num_tasks), np.diff(self.tasks.lane_ptr))
        proc, lane = np.divmod(self.tasks.lanes, NUM_LANES)
        computes = lane == Lane.COMPUTE
        total = np.zeros(self.tasks.num_procs, np.int64)
        np.add.at(total, proc[computes], self.timeline.durations()[owner[computes]])
        return total / PICOSECONDS

"""A plan's step as it was simulated: a part of its processors and microbatches, and what follows from that for all.

It does not know how plans are lowered or folded, nor who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from castile.planner.cost import CostModel
from castile.planner.evaluation.folding import Folded, expand, timed
from castile.planner.lower import Lowering
from castile.planner.simulate import Simulated
from castile.planner.simulation import ordering, repeats
from castile.planner.simulation.ledger import Ledger
from castile.planner.simulation.repeats import Cycle
from castile.planner.simulation.window import Alike, Stretch, Watch, whole
from castile.planner.strategy import Strategy
from castile.runtime.memory import aligned
from castile.runtime.task import NUM_LANES, Buffer, Lane, Task, TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

# To write out more tasks than this takes ten seconds and more.
MOST_WRITTEN = 2**17


class Written(NamedTuple):
    """The tasks of a plan with some of its microbatches written out.

    lowering    by which they were made, or those of which they are copies
    folded      which processors they stand for, and the tasks before any were put together
    number[T]   the microbatch of each task, as `repeats.numbers` has it
    alike       which tasks are of microbatches that are alike; None where that is not known
    called      gives tasks and buffers with the names that they have so many microbatches later
    """

    lowering: Lowering
    folded: Folded
    number: np.ndarray
    alike: Alike | None = None
    called: Callable[[int], tuple[Sequence[Task], Sequence[Buffer]]] | None = None

    def later(self, by: int) -> TaskGraph:
        """The tasks, named as if the microbatches that are alike came so many microbatches later."""
        if not by or self.called is None:
            return self.folded.graph
        tasks, buffers = self.called(by)
        return replace(self.folded.graph, tasks=tasks, buffers=buffers)


@dataclass(frozen=True, eq=False)
class SimulatedStep:
    """A plan that was simulated: T tasks of C processors, and when they run.

    written     what they were made of
    tasks       with the prices of their own kinds of processors, in the plan's order
    simulated   the times of what is written out
    count[T]    for how many tasks of the whole step each stands
    peak_bytes  of each of the machine's processors
    cycle       what is gone through `times` times more than is written out, None where all is written out
    left        how many microbatches were simulated that are not written out, as `window.simulated` does it
    """

    strategy: Strategy
    written: Written
    tasks: TaskGraph
    simulated: Simulated
    count: np.ndarray
    peak_bytes: np.ndarray
    cycle: Cycle | None = None
    times: int = 0
    left: int = 0

    @property
    def lowering(self) -> Lowering:
        """As `written` says, and so the next two."""
        return self.written.lowering

    @property
    def folded(self) -> Folded:
        return self.written.folded

    @property
    def number(self) -> np.ndarray:
        return self.written.number

    @property
    def is_all(self) -> bool:
        """Whether each processor and each task stands for itself alone."""
        return self.tasks.num_procs == len(self.role) and int(self.count.max(initial=1)) == 1

    @property
    def is_short(self) -> bool:
        """Whether not all microbatches are written out."""
        return self.cycle is not None or self.left > 0

    @property
    def is_long(self) -> bool:
        """Whether its microbatches are too many to write all of them out."""
        return self.is_short and int(self.count.sum()) > MOST_WRITTEN

    @cached_property
    def timeline(self) -> Timeline:
        """When the tasks run in the whole step; what stands for several microbatches lasts as long as all of them."""
        timeline = self.simulated.timeline
        return timeline if self.cycle is None else repeats.stretched(timeline, self.cycle, self.times)

    @property
    def seconds(self) -> float:
        """What the whole step takes."""
        return self.timeline.seconds

    @property
    def num_left(self) -> int:
        """How many microbatches are not written out."""
        return self.times * self.cycle.microbatches if self.cycle else self.left

    @property
    def num_microbatches(self) -> int:
        """How many are written out."""
        return self.strategy.microbatches - self.num_left

    def lasting(self, alignment: int = 1) -> dict[str, np.ndarray]:
        """int64[P] by region, as `repeats.lasting` has it: bytes that microbatches which are not written out hold all
        step long.
        """
        if not self.is_short:
            return {}
        lowering, (_, flows) = self.lowering, self.lowering.instances(self.strategy)
        program, num_procs = lowering.program(self.strategy), lowering.machine.num_procs
        return repeats.lasting(program, flows, num_procs, self.num_left, alignment)

    @property
    def with_lasting(self) -> SimulatedStep:
        """The same step, with these bytes added on each processor."""
        return replace(self, peak_bytes=sum(self.lasting().values(), self.peak_bytes))

    @property
    def role(self) -> np.ndarray:
        """int64[P]: the processor of `tasks` that stands for each of the machine's."""
        return self.folded.proc_class

    @property
    def copies(self) -> np.ndarray:
        """int64[C]: for how many processors each of `tasks` stands."""
        return np.bincount(self.role, minlength=self.tasks.num_procs)

    @cached_property
    def lasts(self) -> np.ndarray:
        """int64[T]: picoseconds for which each task runs, with those that it stands for in other microbatches."""
        lasts = self.timeline.durations()
        return lasts * (self.count // self.folded.count) if self.left else lasts

    @cached_property
    def busy_seconds(self) -> np.ndarray:
        """float64[C]: how long the compute lane of each processor of `tasks` works in the whole step."""
        owner = np.repeat(np.arange(self.tasks.num_tasks), np.diff(self.tasks.lane_ptr))
        proc, lane = np.divmod(self.tasks.lanes, NUM_LANES)
        computes = lane == Lane.COMPUTE
        total = np.zeros(self.tasks.num_procs, np.int64)
        np.add.at(total, proc[computes], self.lasts[owner[computes]])
        return total / PICOSECONDS

    def watched(self, cost: CostModel, *watch: Watch) -> None:
        """Show the whole step, stretch after stretch (`window.Stretch`), of the tasks of `folded`; live arrays take as
        much as in arenas.
        """
        graph = self.folded.graph

        def shown(stretch: Stretch) -> None:
            for each in watch:
                each(stretch)

        if not self.left:
            return shown(whole(graph, self.timeline, self.lowering.machine.engines))
        buffers, private = aligned(graph.buffer_bytes), aligned(graph.private_bytes)
        graph = replace(graph, buffer_bytes=buffers, private_bytes=private)
        written = self.written._replace(folded=replace(self.folded, graph=graph))
        step = simulate_step_in_window(written, self.strategy, cost, self.left, watch=shown)
        assert step is not None and step.seconds == self.seconds
        return None

    def ledger(self, cause: np.ndarray, num_causes: int) -> Ledger:
        """A ledger to enter the step into; cause[T] is what each task is for."""
        engines, alike = self.lowering.machine.engines, self.written.alike if self.left else None
        return Ledger(self.folded.graph, engines, cause, num_causes, alike)


def simulate_step(written: Written, strategy: Strategy, cost: CostModel, most: float = inf) -> SimulatedStep:
    """Simulate a plan with the microbatches that are written out. Raises Slower as `simulate_in_order` does."""
    folded, engines, priced = written.folded, written.lowering.machine.engines, timed(written.folded, cost)
    tasks, found = ordering.simulate_in_order(written.number, folded.graph, priced, engines, strategy.order, most)
    return SimulatedStep(strategy, written, tasks, found, folded.count, expand(folded, found).peak_bytes)


def simulate_step_in_window(
    written: Written, strategy: Strategy, cost: CostModel, more: int, most: float = inf, watch: Watch | None = None
) -> SimulatedStep | None:
    """The same with so many more microbatches, but for what these hold all step long; None where those that are written
    out cannot stand for them.
    """
    folded, engines, alike = written.folded, written.lowering.machine.engines, written.alike
    priced = timed(folded, cost)
    found = alike and ordering.simulate_window_in_order(
        written.number, folded.graph, priced, engines, strategy.order, most, alike, more, watch
    )
    if alike is None or found is None:
        return None
    (tasks, made), named = found, written.later(more)
    tasks, peak = replace(tasks, tasks=named.tasks, buffers=named.buffers), expand(folded, made).peak_bytes
    return SimulatedStep(strategy, written, tasks, made, folded.count * alike.times(more), peak, left=more)

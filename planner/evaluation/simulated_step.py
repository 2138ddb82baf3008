"""A plan's simulated step: of a part of its processors and microbatches, with what follows for all.

It does not know how plans are lowered or folded, nor what a step is evaluated for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from castile.planner.cost import CostModel
from castile.planner.evaluation.folding import Folded, expand, price_graph
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

# Writing out more tasks takes more than ten seconds.
MOST_WRITTEN = 2**17


class WrittenTasks(NamedTuple):
    """The tasks of a plan with some of its microbatches written out.

    lowering    made the tasks, or those of which they are copies
    folded      their graph, and the processors and tasks that they stand for
    number[T]   the microbatch of each task (`repeats.numbers`)
    alike       which tasks belong to equal microbatches; None where that is not known
    renamed     as `Unrolled.renamed`
    """

    lowering: Lowering
    folded: Folded
    number: np.ndarray
    alike: Alike | None = None
    renamed: Callable[[int], tuple[Sequence[Task], Sequence[Buffer]]] | None = None

    def later(self, by: int) -> TaskGraph:
        """The graph, with names as if the equal microbatches came `by` microbatches later."""
        if not by or self.renamed is None:
            return self.folded.graph
        tasks, buffers = self.renamed(by)
        return replace(self.folded.graph, tasks=tasks, buffers=buffers)


@dataclass(frozen=True, eq=False)
class SimulatedStep:
    """The simulated step of a plan: T tasks of C processors, which stand for those of P, and when they run.

    written     the tasks before they were ordered
    tasks       the graph with the edges of the plan's kernel order
    simulated   the simulation of the tasks that are written out
    count[T]    how many tasks of the whole step each stands for
    peak_bytes  int64[P]
    cycle       the period that follows `times` times more than it is written out; None without such periods
    left        how many microbatches were simulated through a window and are not written out
    """

    strategy: Strategy
    written: WrittenTasks
    tasks: TaskGraph
    simulated: Simulated
    count: np.ndarray
    peak_bytes: np.ndarray
    cycle: Cycle | None = None
    times: int = 0
    left: int = 0

    @property
    def lowering(self) -> Lowering:
        """Of `written`, as the next two."""
        return self.written.lowering

    @property
    def folded(self) -> Folded:
        return self.written.folded

    @property
    def number(self) -> np.ndarray:
        return self.written.number

    @property
    def is_complete(self) -> bool:
        """Whether each processor and each task stands for itself only."""
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
        """When tasks run in the whole step; one that stands for several microbatches runs as long as all of these."""
        timeline = self.simulated.timeline
        return timeline if self.cycle is None else repeats.stretched(timeline, self.cycle, self.times)

    @property
    def seconds(self) -> float:
        """The seconds of the whole step."""
        return self.timeline.seconds

    @property
    def num_left(self) -> int:
        """The number of microbatches that are not written out."""
        return self.times * self.cycle.microbatches if self.cycle else self.left

    @property
    def num_microbatches(self) -> int:
        """The number of microbatches that are written out."""
        return self.strategy.microbatches - self.num_left

    def lasting(self, alignment: int = 1) -> dict[str, np.ndarray]:
        """int64[P] by region: bytes that microbatches which are not written out hold for the whole step, as of
        `repeats.lasting`.
        """
        if not self.is_short:
            return {}
        lowering, (_, flows) = self.lowering, self.lowering.instances(self.strategy)
        program, num_procs = lowering.program(self.strategy), lowering.machine.num_procs
        return repeats.lasting(program, flows, num_procs, self.num_left, alignment)

    @property
    def with_lasting(self) -> SimulatedStep:
        """The step with the bytes of `lasting` added to the peaks."""
        return replace(self, peak_bytes=sum(self.lasting().values(), self.peak_bytes))

    @property
    def role(self) -> np.ndarray:
        """int64[P]: the processor of `tasks` that stands for each of the machine's processors."""
        return self.folded.proc_class

    @property
    def copies(self) -> np.ndarray:
        """int64[C]: how many processors each processor of `tasks` stands for."""
        return np.bincount(self.role, minlength=self.tasks.num_procs)

    @cached_property
    def lasts(self) -> np.ndarray:
        """int64[T]: picoseconds of each task, and of those in other microbatches that it stands for."""
        lasts = self.timeline.durations()
        return lasts * (self.count // self.folded.count) if self.left else lasts

    @cached_property
    def busy_seconds(self) -> np.ndarray:
        """float64[C]: seconds that the compute lane of each processor of `tasks` works in the whole step."""
        owner = np.repeat(np.arange(self.tasks.num_tasks), np.diff(self.tasks.lane_ptr))
        proc, lane = np.divmod(self.tasks.lanes, NUM_LANES)
        computes = lane == Lane.COMPUTE
        total = np.zeros(self.tasks.num_procs, np.int64)
        np.add.at(total, proc[computes], self.lasts[owner[computes]])
        return total / PICOSECONDS

    def show_stretches(self, cost: CostModel, *watch: Watch) -> None:
        """Call `watch` with each stretch of the whole step, in turn, for the tasks of `folded`. Bytes are those of
        aligned buffers, as in arenas.
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
        """A ledger for the step's stretches; cause[T]: the cause of each task, below `num_causes`."""
        engines, alike = self.lowering.machine.engines, self.written.alike if self.left else None
        return Ledger(self.folded.graph, engines, cause, num_causes, alike)


def simulate_step(written: WrittenTasks, strategy: Strategy, cost: CostModel, most: float = inf) -> SimulatedStep:
    """Simulate a plan with the microbatches that are written out. Raises Slower as `simulate_in_order` does."""
    folded, engines, priced = written.folded, written.lowering.machine.engines, price_graph(written.folded, cost)
    tasks, found = ordering.simulate_in_order(written.number, folded.graph, priced, engines, strategy.order, most)
    return SimulatedStep(strategy, written, tasks, found, folded.count, expand(folded, found).peak_bytes)


def simulate_step_in_window(
    written: WrittenTasks, strategy: Strategy, cost: CostModel, more: int, most: float = inf, watch: Watch | None = None
) -> SimulatedStep | None:
    """The same with `more` further microbatches, without their `lasting` bytes; None where the written microbatches
    cannot stand for them.
    """
    folded, engines, alike = written.folded, written.lowering.machine.engines, written.alike
    priced = price_graph(folded, cost)
    found = alike and ordering.simulate_window_in_order(
        written.number, folded.graph, priced, engines, strategy.order, most, alike, more, watch
    )
    if alike is None or found is None:
        return None
    (tasks, made), named = found, written.later(more)
    tasks, peak = replace(tasks, tasks=named.tasks, buffers=named.buffers), expand(folded, made).peak_bytes
    return SimulatedStep(strategy, written, tasks, made, folded.count * alike.times(more), peak, left=more)

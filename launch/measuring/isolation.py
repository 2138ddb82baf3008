"""Isolation: a plan whose buffers share no memory, so that any of its tasks can be run repeatedly by itself.

It does not know which tasks are wanted, nor how their times are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from time import perf_counter_ns
from typing import cast

import numpy as np

from castile.launch.jobs.execution import Feed, Prepared
from castile.launch.jobs.jobs import Job
from castile.launch.processes.ranks import UserError
from castile.planner.strategy import Strategy
from castile.runtime import cores, memory
from castile.runtime.comm.messages import Request
from castile.runtime.executor import is_transfer
from castile.runtime.memory import Packing
from castile.runtime.runner import PICOSECONDS_PER_NANOSECOND, Runner
from castile.runtime.task import Kind, TaskGraph
from castile.runtime.timeline import Timeline

# A kernel's first call may compile it, its second fills the caches.
WARM_UP = 2
LEAST_REPETITIONS = 5
LEAST_NANOSECONDS = 20_000_000
MOST_TRANSFERS = 200
# Where tasks are timed by steps.
STEPS = 15


class Bench:
    """Tasks with buffers of their own, so that any of them can be run repeatedly.

    mine       the numbers of this rank's tasks
    by_steps   tasks are timed within whole steps, by the device's events, since on a GPU a call returns before its
               kernel has run
    sent       arrays of this rank that its transfers send: in a step they were just written, and what another core
               wrote takes twice as long to read
    """

    def __init__(self, job: Job, tasks: TaskGraph, runner: Runner, sent: Sequence[np.ndarray] = ()) -> None:
        self.tasks, self.runner, self.by_steps, self.sent = tasks, runner, job.backend != "numpy", sent
        mine = [tasks.tasks_of(proc) for proc in job.procs]
        self.mine = np.unique(np.concatenate(mine)) if mine else np.zeros(0, np.int64)

    def repeat(self, tasks: Sequence[int], nanoseconds: int) -> np.ndarray:
        """Run these tasks of this rank in turns, for at least `nanoseconds` and five times each.

        Returns the nanoseconds of each run, int64[n]; none where there are no tasks. With `by_steps` these are the
        times within the bench's steps, and all ranks have to call, since all of them run those steps.
        """
        if self.by_steps:
            return np.concatenate([self._spans(step, tasks) @ (-1, 1) for step in self._steps])
        calls = [call for task in tasks for call in self.runner.calls(task)]
        lasted: list[int] = []
        end = perf_counter_ns() + nanoseconds
        while calls and (len(lasted) < LEAST_REPETITIONS * len(calls) or perf_counter_ns() < end):
            for call in calls:
                begun = perf_counter_ns()
                call()
                lasted.append(perf_counter_ns() - begun)
        return np.array(lasted, np.int64)

    def exchange(self, tasks: Sequence[int], repetitions: int) -> np.ndarray:
        """Run these transfers repeatedly, with a barrier of all ranks before each repetition.

        Returns when this rank began and ended each, in nanoseconds of the clock that all ranks share, and for how long
        it waited for a core meanwhile (`Timeline.delayed`): int64[repetitions, 3]. A rank without transfers calls it
        for the barriers. With `by_steps` the repetitions are the bench's steps.
        """
        if self.by_steps:
            # Of several, which ran at their times in the step, the last.
            found = [self._spans(step, tasks) for step in self._steps]
            delayed = [step.delayed // PICOSECONDS_PER_NANOSECOND for step in self._steps]
            return np.array([[*one.max(axis=0, initial=0), d] for one, d in zip(found, delayed, strict=True)], np.int64)
        spans, comm = np.zeros((repetitions, 3), np.int64), self.runner.comm
        calls = [call for task in tasks for call in self.runner.calls(task)]
        for number in range(repetitions):
            for array in self.sent:
                array.fill(1)
            # to ask takes as long as a short transfer: before the barrier it delays none
            delayed_ns = cores.delayed_ns()
            comm.barrier()
            spans[number, 0] = perf_counter_ns()
            comm.wait(*[cast(Request, call()) for call in calls])
            spans[number, 1] = perf_counter_ns()
            spans[number, 2] = 0 if comm.crowded else cores.delayed_ns() - delayed_ns
        return spans - np.array([comm.epoch_ns, comm.epoch_ns, 0])

    @cached_property
    def _steps(self) -> list[Timeline]:
        return [self.runner.step() for _ in range(STEPS)]

    def _spans(self, step: Timeline, tasks: Sequence[int]) -> np.ndarray:
        """int64[n, 2]: when these tasks began and ended in a step, nanoseconds."""
        rows = np.isin(step.task, np.asarray(tasks, np.int64))
        return np.stack([step.start[rows], step.end[rows]], 1) // PICOSECONDS_PER_NANOSECOND


class Isolated(Bench):
    """This rank's part of a plan after two real steps, so that every buffer holds what a real step leaves in it."""

    def __init__(self, job: Job, name: str, plan: Strategy, feed: Feed, rate: float) -> None:
        """Raises UserError where the buffers do not fit side by side."""
        prepared = job.prepare(plan)
        packing = without_reuse(prepared.tasks)
        if lack := memory.lacking(packing.peak_bytes, job.machine.capacity):
            raise UserError(
                f"plan {name}: to profile it every array gets memory of its own, and processor {lack[0]} then needs "
                f"{lack[1]}: take a smaller --batch"
            )
        execution = job.execute(Prepared(prepared.tasks, prepared.simulated, packing), 0)
        execution.feed(feed, rate)
        for _ in range(WARM_UP):
            execution.runner.run()
        super().__init__(job, prepared.tasks, execution.runner)


def without_reuse(tasks: TaskGraph) -> Packing:
    """A packing that reuses no bytes: buffers side by side, persistent ones first, then every task's private memory.

    Tasks of one compute lane never run at once, so they share their private memory.
    """
    offset = np.full(tasks.num_buffers, -1)
    private = np.full(tasks.num_tasks, -1)
    peak = np.zeros(tasks.num_procs, np.int64)
    for proc in range(tasks.num_procs):
        mine = np.flatnonzero(tasks.buffer_proc == proc)
        mine = mine[np.argsort(tasks.buffer_first[mine] >= 0, kind="stable")]
        sizes = memory.aligned(tasks.buffer_bytes[mine])
        ends = np.cumsum(sizes)
        offset[mine] = ends - sizes
        floor = int(ends[-1]) if len(ends) else 0
        wanting = [t for t in tasks.tasks_of(proc).tolist() if tasks.private_bytes[t]]
        private[[t for t in wanting if not is_transfer(int(tasks.kind[t]))]] = floor
        peak[proc] = floor + int(memory.aligned(tasks.private_bytes[wanting]).max(initial=0))
    return Packing(offset, private, peak, peak, np.zeros((0, 2), np.int64))


def is_compute(tasks: TaskGraph, task: int) -> bool:
    """Whether a task runs on one processor: a kernel, a copy or a sum."""
    return int(tasks.kind[task]) < Kind.MOVE

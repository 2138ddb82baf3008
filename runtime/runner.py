"""The shell of a rank: binds a task graph to memory, kernels and messages once, then runs it step by step.

It does not know what tasks compute, nor what carries their messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from time import perf_counter

import numpy as np

from castile.runtime import cores
from castile.runtime.backends.base import Arenas, Backend, Share, State, load
from castile.runtime.comm.base import Communicator
from castile.runtime.comm.local import PATIENCE
from castile.runtime.comm.processors import end_of, rank_of
from castile.runtime.executor import program
from castile.runtime.mapper import Default, Mapper, check
from castile.runtime.memory import Packing
from castile.runtime.task import Kind, TaskGraph
from castile.runtime.timeline import Timeline, merge
from castile.runtime.watchdog import Waits, Watchdog
from castile.runtime.worker import Action, Worker

PICOSECONDS_PER_NANOSECOND = 1000
# Of as many turns of a rank that waits one looks at the clock, which takes longer than the others of them.
TURNS_A_LOOK = 64


class Runner:
    """This rank's part of a task graph, ready to run.

    procs    the processors of this rank; ranks[p] is the rank of processor p (default: one each, or runs of neighbours)
    state    persistent arrays by (region, box, processor): those found are used, others are made and put there, so that
             graphs given the same `state` share their parameters
    lent     the `arenas` of another one, none of whose steps runs while one of this does: used as far as they go
    backend  a name, or a class whose kernels are not those of the product
    poison   memory that no task has written yet holds NaN
    mapper   decides the issue order; raises ValueError where its order breaks a need or moves a transfer

    An exception out of a step carries the step, the task and the rank as a note; where it came as the step began or its
    times were asked for, or a device tells late that a task has failed, it is that task or one before, or one of
    another processor of the rank.
    """

    def __init__(
        self,
        graph: TaskGraph,
        timeline: Timeline,
        packing: Packing,
        procs: Sequence[int],
        comm: Communicator,
        backend: str | type[Backend] = "numpy",
        state: State | None = None,
        poison: bool = False,
        mapper: Mapper | None = None,
        ranks: Sequence[int] | None = None,
        lent: Arenas | None = None,
    ) -> None:
        self.graph, self.comm = graph, comm
        self.num_steps = 0
        self._delayed_ns = 0
        ranks = rank_of(graph.num_procs, comm.size) if ranks is None else ranks
        state = {} if state is None else state
        kind = load(backend) if isinstance(backend, str) else backend
        self._backends = [kind(graph, packing, proc, state, poison, (lent or {}).get(proc)) for proc in procs]
        shares = []
        # A transfer's tag is its number among the transfers of the graph.
        tags = np.cumsum(graph.kind >= Kind.MOVE).tolist()
        for proc, memory in zip(procs, self._backends):
            order = _order(graph, timeline, packing, proc, mapper)
            steps = program(graph, order, packing.edges)
            tasks = [graph.tasks[task] for task in steps.tasks]
            end = end_of(comm, proc, ranks)
            shares.append(Share(memory, steps, tasks, [tags[task] for task in steps.tasks], end))
        self._workers: list[Worker] = kind.workers(shares)
        self._calls = [dict(zip(worker.program.tasks, worker.actions)) for worker in self._workers]
        self._backend_of = dict(zip(procs, self._backends))
        self._ranks = ranks
        # of ranks that need not answer
        self._watchdog = Watchdog(comm.aside, timeline.seconds) if comm.aside and comm.size > 1 else None

    @property
    def feeds_ahead(self) -> bool:
        """Whether inputs may be filled for the next step while one is under way."""
        return all(memory.feeds_ahead for memory in self._backends)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held by this rank's processors, but for arrays that were found in `state` or lent."""
        return sum(memory.nbytes for memory in self._backends)

    @property
    def arenas(self) -> Arenas:
        """This rank's memory that is no persistent array's."""
        return {proc: memory.arena for proc, memory in self._backend_of.items()}

    @property
    def workspace_bytes(self) -> int:
        """What kernels took besides, which no plan knows of."""
        return sum(memory.workspace_bytes for memory in self._backends)

    @property
    def remarks(self) -> list[str]:
        """What is worth knowing of how steps are run here."""
        return sorted({worker.remark for worker in self._workers} - {""})

    @property
    def done(self) -> bool:
        """Whether the step has ended."""
        return all(worker.done for worker in self._workers)

    def calls(self, task: int) -> list[Action]:
        """The task's calls on this rank, one a processor that takes part; a transfer's begin it and give its request.

        For whoever runs tasks out of their order, in memory that they need not share.
        """
        return [calls[task] for calls in self._calls if task in calls]

    def persistent(self, role: str) -> State:
        """This rank's arrays of that role ("input", "carried", "output") by (region, box, processor)."""
        return {key: array for memory in self._backends for key, array in memory.persistent.get(role, {}).items()}

    def backend(self, proc: int) -> Backend:
        """The backend of one of this rank's processors, which fills and reads its persistent arrays."""
        return self._backend_of[proc]

    def begin(self, timed: bool = True) -> None:
        """Begins a step, which `advance` then carries on; `timed` where `timeline` will be asked for."""
        self.num_steps += 1
        if timed:
            self._delayed_ns = cores.delayed_ns()
        for worker in self._workers:
            try:
                worker.begin(timed)
            except Exception as error:
                self._note(error, worker, True)
                raise

    def begin_ahead(self) -> None:
        """While a step is under way, and the next one's inputs are there: lets devices go on with that one, where they
        can, before anybody has looked at what this one made. It is run all the same, then, and not timed.
        """
        for worker in self._workers:
            try:
                worker.begin_ahead()
            except Exception as error:
                self._note(error, worker, True)
                raise

    def advance(self) -> bool:
        """Goes as far as is possible without waiting; False where nothing could go on."""
        moved = False
        for worker in self._workers:
            if worker.done:
                continue
            try:
                moved |= worker.advance()
            except Exception as error:
                self._note(error, worker, worker.late)
                raise
        return moved

    def run(self, timed: bool = False, meanwhile: Callable[[], object] | None = None) -> None:
        """Runs one step, and does something else as soon as nothing can go on without waiting.

        Raises Unanswered where another rank keeps it waiting for far too long.
        """
        self.begin(timed)
        watchdog, turns = self._watchdog, 0
        empty_polls = 0
        if meanwhile is not None:
            self.advance()
            try:
                meanwhile()
            except Exception:
                # Where the device has failed it is a task's fault, and says so here too.
                self.advance()
                raise
        while not self.done:
            if self.advance():
                empty_polls = 0
            else:
                empty_polls += 1
                self.comm.relax(empty_polls)
            turns += 1
            if not turns % TURNS_A_LOOK and watchdog is not None and perf_counter() >= watchdog.due:
                watchdog.look((self.num_steps, *(worker.progress for worker in self._workers)), self._waits)

    def prompt(self) -> AbstractContextManager[None]:
        """A block after a step in which all ranks come to the same collectives, and none keeps others waiting there for
        long: one that does is treated as in a step.
        """
        if self._watchdog is None:
            return nullcontext()
        return self._watchdog.over(Waits(self._others, f"what ranks tell each other after step {self.num_steps}"))

    @property
    def _others(self) -> set[int]:
        return set(range(self.comm.size)) - {self.comm.rank}

    def _waits(self) -> Waits:
        """For whom this rank waits, and where."""
        tasks = [self.graph.tasks[task] for worker in self._workers if not worker.done for task in worker.awaited]
        procs = {proc for task in tasks for proc in task.procs}
        # a device tells of none
        others = {self._ranks[proc] for proc in procs} - {self.comm.rank} if tasks else self._others
        where = f", task {tasks[0].name}" if tasks else ""
        return Waits(others, f"step {self.num_steps}{where}")

    def step(self) -> Timeline:
        """Runs one step, as `run`, and tells when each of this rank's tasks ran."""
        self.run(True)
        return self.timeline()

    def timeline(self) -> Timeline:
        """When each of this rank's tasks ran in the last step, in picoseconds since the communicator's epoch.

        All ranks share that epoch: `whole_step` makes one timeline of theirs.
        """
        # Where the host has too few cores, to wait for one is part of what a step takes there.
        delayed_ns = 0 if self.comm.crowded else cores.delayed_ns() - self._delayed_ns
        spans = []
        for worker in self._workers:
            try:
                tasks, begun, ended = worker.times()
            except Exception as error:
                self._note(error, worker, True)
                raise
            epoch = self.comm.epoch_ns
            begun, ended = ((times - epoch) * PICOSECONDS_PER_NANOSECOND for times in (begun, ended))
            spans.append(Timeline(tasks, begun, ended, delayed_ns * PICOSECONDS_PER_NANOSECOND))
        if not spans:
            return Timeline(*np.empty((3, 0), np.int64))
        return spans[0] if len(spans) == 1 else merge(spans)

    def _note(self, error: Exception, worker: Worker, late: bool) -> None:
        """Says where a worker stood when an error came; `late` where it may come of an earlier task, or of others."""
        if not worker.program.tasks:
            where = "a processor without tasks"
        else:
            others = " or on another processor" * (late and len(self._workers) > 1)
            name = self.graph.tasks[worker.program.tasks[worker.position]].name
            where = f"{'at or before ' * late}task {name}{others}"
        error.add_note(f"step {self.num_steps}, {where}, rank {self.comm.rank}")


def run_local(runners: Sequence[Runner], timed: bool = True) -> None:
    """Runs one step of all ranks of one process, in turns. Raises RuntimeError where all would wait for ever."""
    for runner in runners:
        runner.begin(timed)
    empty_polls = 0
    while not all(runner.done for runner in runners):
        moved = [runner.advance() for runner in runners if not runner.done]
        empty_polls = 0 if any(moved) else empty_polls + 1
        if empty_polls >= PATIENCE:
            stuck = [str(runner.comm.rank) for runner in runners if not runner.done]
            raise RuntimeError(f"ranks {', '.join(stuck)} wait for each other")


def whole_step(timelines: Sequence[Timeline]) -> Timeline:
    """All ranks' timelines of one step as one, which begins at zero."""
    merged = merge(list(timelines))
    begin = min((int(t.start.min()) for t in timelines if len(t.start)), default=0)
    return replace(merged, start=merged.start - begin, end=merged.end - begin)


def _order(graph: TaskGraph, timeline: Timeline, packing: Packing, proc: int, mapper: Mapper | None) -> tuple[int, ...]:
    order = (mapper or Default()).order(graph, timeline, proc)
    if mapper is not None:
        check(graph, timeline, proc, order, packing.edges)
    return tuple(int(task) for task in order)

"""The runner of a rank: binds a task graph to memory, kernels and messages once, then runs it step by step.

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
# A waiting rank reads the clock once in this many polls, as that takes longer than a poll.
POLLS_A_LOOK = 64


class Runner:
    """This rank's part of a task graph, ready to run.

    procs     the processors of this rank
    backend   a name, or a class, as tests have, with kernels of its own
    state     persistent arrays by (region, box, processor): those that are there are used, others are allocated and put
              there, so that graphs with the same `state` share their parameters
    poison    whether memory that no task has written yet holds NaN
    mapper    decides the issue order; raises ValueError where its order breaks a need or moves a transfer
    ranks     by processor its rank; by default one each, or runs of neighbours
    lent      the `arenas` of another runner, used where they are large enough. Their steps must not overlap

    An exception out of a step has a note with the step, the task and the rank. On devices that report errors late, and
    where a step begins or its times are read, it may be of an earlier task, or of another processor of the rank.
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
        # a transfer's tag is its number among the transfers of the graph
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
        # only where ranks may fail to answer
        self._watchdog = Watchdog(comm.aside, timeline.seconds) if comm.aside and comm.size > 1 else None

    @property
    def feeds_ahead(self) -> bool:
        """Whether inputs of the next step may be filled while a step is under way."""
        return all(memory.feeds_ahead for memory in self._backends)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that this rank's processors allocated: not of arrays from `state` or lent arenas."""
        return sum(memory.nbytes for memory in self._backends)

    @property
    def arenas(self) -> Arenas:
        """The arenas of this rank's processors: memory that is not persistent."""
        return {proc: memory.arena for proc, memory in self._backend_of.items()}

    @property
    def workspace_bytes(self) -> int:
        """Bytes of workspace that kernels allocated, which no plan knows of."""
        return sum(memory.workspace_bytes for memory in self._backends)

    @property
    def remarks(self) -> list[str]:
        """Notes for users about how steps are run here."""
        return sorted({worker.remark for worker in self._workers} - {""})

    @property
    def done(self) -> bool:
        """Whether the step has ended."""
        return all(worker.done for worker in self._workers)

    def calls(self, task: int) -> list[Action]:
        """The task's calls on this rank, one for each of its processors that takes part; a transfer's calls begin it
        and return its request. For running tasks out of order, with memory that is not shared.
        """
        return [calls[task] for calls in self._calls if task in calls]

    def persistent(self, role: str) -> State:
        """This rank's arrays of a role ("input", "carried", "output") by (region, box, processor)."""
        return {key: array for memory in self._backends for key, array in memory.persistent.get(role, {}).items()}

    def backend(self, proc: int) -> Backend:
        """The backend of one of this rank's processors, which fills and reads its persistent arrays."""
        return self._backend_of[proc]

    def begin(self, timed: bool = True) -> None:
        """Begin a step, which `advance` then runs; `timed` if `timeline` will be called."""
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
        """Let devices that can go on with the next step, untimed, as soon as the one under way has ended. Its inputs
        must be there; it must be run all the same.
        """
        for worker in self._workers:
            try:
                worker.begin_ahead()
            except Exception as error:
                self._note(error, worker, True)
                raise

    def advance(self) -> bool:
        """Go as far as possible without waiting; False if nothing was done."""
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
        """Run one step.

        meanwhile   called once, as soon as nothing can go on without waiting
        Raises Unanswered where another rank keeps this one waiting for far too long.
        """
        self.begin(timed)
        watchdog, polls = self._watchdog, 0
        empty_polls = 0
        if meanwhile is not None:
            self.advance()
            try:
                meanwhile()
            except Exception:
                # Where the device has failed, a task is to blame: this raises its error.
                self.advance()
                raise
        while not self.done:
            if self.advance():
                empty_polls = 0
            else:
                empty_polls += 1
                self.comm.relax(empty_polls)
            polls += 1
            if not polls % POLLS_A_LOOK and watchdog is not None and perf_counter() >= watchdog.due:
                watchdog.look((self.num_steps, *(worker.progress for worker in self._workers)), self._waits)

    def prompt(self) -> AbstractContextManager[None]:
        """A context after a step in which all ranks meet in collectives and none may keep others waiting for long: the
        watchdog watches it as it does a step.
        """
        if self._watchdog is None:
            return nullcontext()
        return self._watchdog.over(Waits(self._others, f"what ranks tell each other after step {self.num_steps}"))

    @property
    def _others(self) -> set[int]:
        return set(range(self.comm.size)) - {self.comm.rank}

    def _waits(self) -> Waits:
        """The ranks for which this one waits, and where."""
        tasks = [self.graph.tasks[task] for worker in self._workers if not worker.done for task in worker.awaited]
        procs = {proc for task in tasks for proc in task.procs}
        # a device names no tasks
        others = {self._ranks[proc] for proc in procs} - {self.comm.rank} if tasks else self._others
        where = f", task {tasks[0].name}" if tasks else ""
        return Waits(others, f"step {self.num_steps}{where}")

    def step(self) -> Timeline:
        """Run one timed step, as `run`; returns when each of this rank's tasks ran."""
        self.run(True)
        return self.timeline()

    def timeline(self) -> Timeline:
        """When each of this rank's tasks ran in the last step, in picoseconds since the communicator's epoch.

        All ranks share that epoch: `whole_step` merges their timelines.
        """
        # With more ranks than cores, waiting for a core is part of a step.
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
        """Add to an error where a worker was; `late` if an earlier task or another processor may be to blame."""
        if not worker.program.tasks:
            where = "a processor without tasks"
        else:
            others = " or on another processor" * (late and len(self._workers) > 1)
            name = self.graph.tasks[worker.program.tasks[worker.position]].name
            where = f"{'at or before ' * late}task {name}{others}"
        error.add_note(f"step {self.num_steps}, {where}, rank {self.comm.rank}")


def run_local(runners: Sequence[Runner], timed: bool = True) -> None:
    """Run one step of all ranks of one process, in turns. Raises RuntimeError where all would wait forever."""
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
    """Merge all ranks' timelines of one step into one that begins at zero."""
    merged = merge(list(timelines))
    begin = min((int(t.start.min()) for t in timelines if len(t.start)), default=0)
    return replace(merged, start=merged.start - begin, end=merged.end - begin)


def _order(graph: TaskGraph, timeline: Timeline, packing: Packing, proc: int, mapper: Mapper | None) -> tuple[int, ...]:
    order = (mapper or Default()).order(graph, timeline, proc)
    if mapper is not None:
        check(graph, timeline, proc, order, packing.edges)
    return tuple(int(task) for task in order)

"""Workers: a worker carries out what the executor of one processor says: it makes calls, polls transfers and reads the
clock.

It does not know what the calls do.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from time import perf_counter_ns

import numpy as np

from castile.runtime.comm.messages import DONE, Request
from castile.runtime.executor import Executor, Program, Wait

# A task as a call: an asynchronous one returns the request that tells when it has finished.
Action = Callable[[], object]


class Worker:
    """Runs one processor's steps.

    done       whether the step has ended
    position   the position in the program of the task that was touched last
    late       whether an error may be of an earlier task, or of another worker of the rank, as on devices that report
               errors late
    actions    the calls, in the program's order
    awaited    the transfers that the worker waited for when it last could not go on

    A transfer's span ends when it is seen to have finished, and is as long as the processor was occupied with it: in
    calls, and in waiting with nothing else to do. Kernels that ran meanwhile do not count.
    """

    @property
    def remark(self) -> str:
        """A note for users about how steps are run, "" for none."""
        return ""

    def __init__(self, steps: Program, actions: Sequence[Action]) -> None:
        self.program = steps
        self.done = True
        self.position = 0
        self.late = False
        self.actions = tuple(actions)
        self.awaited: tuple[int, ...] = ()
        self._executor = Executor(steps)
        self._pending: dict[int, tuple[int, Request]] = {}
        nothing = bytes(8 * len(steps.tasks))
        self._begun, self._ended, self._spent = array("q", nothing), array("q", nothing), array("q", nothing)
        self._idle_since = 0

    @property
    def progress(self) -> tuple[int, int]:
        """The progress of the step: it changes whenever a task has begun or a transfer has ended."""
        return self._executor.furthest, len(self._pending)

    def begin(self, timed: bool = True) -> None:
        """Begin a step; `timed` if `times` will be called, which this worker can always answer."""
        self._executor.begin()
        self.done, self.position = False, 0

    def begin_ahead(self) -> None:
        """Queue the next step, untimed, behind the one under way, on devices that can. `begin` must still be called
        when this one has ended. A host has no such queue.
        """

    def advance(self) -> bool:
        """Go on until the step has ended or every task waits; False if nothing was done."""
        next_, finished, actions = self._executor.next, self._executor.finished, self.actions
        begun, ended = self._begun, self._ended
        pending, clock = self._pending, perf_counter_ns
        moved = False
        while (instruction := next_()) is not None:
            if isinstance(instruction, Wait):
                if not self._poll_all(instruction.tasks):
                    self.awaited = instruction.tasks
                    return moved
            else:
                position, task, asynchronous = instruction
                self.position = position
                self._idle_since = 0
                begun[position] = clock()
                outcome = actions[position]()
                if outcome is DONE:
                    ended[position] = clock()
                    finished(task)
                elif asynchronous:
                    self._spent[position] = clock() - begun[position]
                    pending[task] = (position, outcome)  # type: ignore[assignment]
                else:
                    ended[position] = clock()
                    if pending:
                        self._poll_one()
            moved = True
        self.done = True
        return True

    def times(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tasks of the last step in ascending order, and when each began and ended, by perf_counter_ns."""
        tasks = np.array(self.program.tasks, np.int64)
        by_number = np.argsort(tasks)
        begun, ended = (np.frombuffer(times, np.int64)[by_number] for times in (self._begun, self._ended))
        return tasks[by_number], begun, ended

    def _poll_all(self, awaited: Sequence[int]) -> bool:
        """Poll all transfers under way, since one may need what we owe to another; True if any finished.

        Nothing else can be done before one of `awaited` finishes, so the time since then counts as theirs.
        """
        self._idle_since = since = self._idle_since or perf_counter_ns()
        finished = [
            task
            for task, (position, request) in self._pending.items()
            if self._poll(position, request, since if task in awaited else 0)
        ]
        for task in finished:
            del self._pending[task]
            self._executor.finished(task)
            self._idle_since = 0
        return bool(finished)

    def _poll_one(self) -> None:
        """Poll one transfer between two tasks, in round robin."""
        task = next(iter(self._pending))
        position, request = self._pending.pop(task)
        if self._poll(position, request):
            self._executor.finished(task)
        else:
            self._pending[task] = (position, request)

    def _poll(self, position: int, request: Request, since: int = 0) -> bool:
        """Poll one transfer.

        since   when the processor began to be occupied with it, by perf_counter_ns; 0 for now
        """
        self.position = position
        begun = since or perf_counter_ns()
        done = request.poll()
        now = perf_counter_ns()
        if done:
            self._begun[position] = begun - self._spent[position]
            self._ended[position] = now
        elif not since:
            self._spent[position] += now - begun
        return done

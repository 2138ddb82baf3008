"""The issuer obeys the executor of a processor that has streams: a whole step is put onto them without waiting.

Kernels lie on one stream and transfers on another, both in the program's order, and events make one wait for the other.
From its second time on a step is one CUDA graph, where all of it can be captured. It does not know what the calls do.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import cupy
import numpy as np

from castile.runtime.backends.cuda.clocks import Clocks
from castile.runtime.backends.cuda.polled import TASK_BY_TASK
from castile.runtime.executor import Program
from castile.runtime.worker import Action, Worker

# Between two looks for transfers that failed; waiting itself is the device's business.
LOOK_NANOSECONDS = 1_000_000

# A call, and where in the program the task stands that it is for.
Placed = tuple[int, Action]


class Issuer(Worker):
    """One processor's steps on two streams of the device that is current.

    deliver    puts onto the stream `compute` what a step begins with, which changes from step to step
    check      raises where a transfer under way has failed
    on_host    kernels among the actions that compute on the host, and so cannot be captured
    uncaptured why a step is not one CUDA graph, "" where it is
    """

    def __init__(
        self,
        steps: Program,
        actions: Sequence[Action],
        compute: Any,
        traffic: Any,
        deliver: Action,
        check: Callable[[], None],
        on_host: Collection[str] = (),
    ) -> None:
        super().__init__(steps, actions)
        self.uncaptured = f"{_listed(on_host)} on the host" if on_host else ""
        self._compute, self._traffic, self._deliver, self._check = compute, traffic, deliver, check
        self._calls = issued(steps, self.actions, compute, traffic)
        self._clocks = Clocks([traffic if moves else compute for moves in steps.asynchronous])
        self._timed_calls: list[Placed] = []
        self._end = cupy.cuda.Event(disable_timing=True)
        self._moves = any(steps.asynchronous)
        self._graph: Any = None
        self._num_steps = 0
        self._timed = self._issued = False

    @property
    def remark(self) -> str:
        return f"{TASK_BY_TASK}: {self.uncaptured}" if self.uncaptured else ""

    def begin(self, timed: bool = True) -> None:
        """Begins a step; one that is `timed` has an event before and after each task, and is issued task by task."""
        assert self.done, "a step is still under way"
        self.done, self._timed, self._issued = False, timed, False

    def advance(self) -> bool:
        """Issues the step, and later waits for a while; True, since the device goes on by itself."""
        if self._issued:
            self.done = self._waited()
        else:
            self._issue()
            self._issued = True
            self._num_steps += 1
        return True

    def times(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As every worker's; the device's clock is set by the host's at the beginning of the step."""
        by_number = np.argsort(self.program.tasks)
        begun, ended = self._clocks.read()
        return np.array(self.program.tasks, np.int64)[by_number], begun[by_number], ended[by_number]

    def _issue(self) -> None:
        with self._compute:
            self._deliver()
            if self._timed:
                self._run_timed()
            elif self._captured():
                self._graph.launch(self._compute)
            else:
                self._run(self._calls)
            self._end.record(self._compute)

    def _run_timed(self) -> None:
        if not self._timed_calls:
            actions = self._clocks.around(self.actions)
            self._timed_calls = issued(self.program, actions, self._compute, self._traffic)
        self._clocks.start()
        self._run(self._timed_calls)

    def _run(self, calls: Sequence[Placed]) -> None:
        for self.position, call in calls:
            call()

    def _waited(self) -> bool:
        """Whether the step has ended, after a while at most where there are transfers that may fail."""
        if not self._moves:
            self._end.synchronize()
            return True
        until = time.perf_counter_ns() + LOOK_NANOSECONDS
        while not self._end.done:
            if time.perf_counter_ns() >= until:
                self._check()
                return False
            # Other threads make the next step's samples.
            time.sleep(0)
        return True

    def _captured(self) -> bool:
        """Whether there is a graph of the step, which the second step makes: the first may load and allocate."""
        if self._graph is not None or self.uncaptured or not self._num_steps:
            return self._graph is not None
        self._compute.begin_capture()
        try:
            self._run(self._calls)
            self._graph = self._compute.end_capture()
        except Exception as error:
            self._abandon()
            # What has failed for another reason would fail again.
            if "captur" not in str(error).lower():
                raise
            self.uncaptured = f"it cannot be captured ({error})"
        return self._graph is not None

    def _abandon(self) -> None:
        """Ends a capture that failed; what CUDA says to that has been said already."""
        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
            self._compute.end_capture()


def issued(steps: Program, actions: Sequence[Action], compute: Any, traffic: Any) -> list[Placed]:
    """The calls that put a step onto its two streams, each with the place in the program of the task that it is for.

    All of it begins and ends on `compute`. A stream waits for an event once: what comes later on it comes after.
    """
    awaited = {task for waits, moves in zip(steps.waits, steps.asynchronous) if not moves for task in waits}
    wanted = {after for after in steps.after if after}
    done: dict[int, Any] = {}
    reached: dict[int, Any] = {}
    calls: list[Placed] = []
    num_kernels = known = 0

    def mark(at: int, stream: Any) -> Any:
        event = cupy.cuda.Event(disable_timing=True)
        calls.append((at, partial(event.record, stream)))
        return event

    if any(steps.asynchronous):
        calls.append((0, partial(traffic.wait_event, mark(0, compute))))
    rows = zip(steps.tasks, steps.asynchronous, steps.waits, steps.after, actions, strict=True)
    for at, (task, moves, waits, after, action) in enumerate(rows):
        if moves:
            if after > known:
                known = after
                calls.append((at, partial(traffic.wait_event, reached[after])))
            calls.append((at, action))
            if task in awaited:
                done[task] = mark(at, traffic)
        else:
            calls += [(at, partial(compute.wait_event, done[other])) for other in waits]
            calls.append((at, action))
            num_kernels += 1
            if num_kernels in wanted:
                reached[num_kernels] = mark(at, compute)
    if any(steps.asynchronous):
        last = len(steps.tasks) - 1
        calls.append((last, partial(compute.wait_event, mark(last, traffic))))
    return calls


def _listed(names: Collection[str]) -> str:
    """The names with their verb."""
    return f"{', '.join(sorted(names))} {'is' if len(names) == 1 else 'are'} computed"

"""The issuer runs the programs of processors that have streams: a whole step is put onto them without waiting.

A processor's kernels lie on one stream and its transfers on another, and events make one wait for the other.
From its second time on a step is one CUDA graph, where all of it can be captured, here and by all ranks with transfers,
and another may lie behind it, so that the device need not wait for the host in between.
It does not know what the calls do.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from statistics import median
from typing import Any

import cupy
import numpy as np

from castile.kernels.calls import chain
from castile.runtime.backends.cuda.clocks import NANOSECONDS_PER_MILLISECOND, Clocks
from castile.runtime.backends.cuda.faults import AT_ONCE, may_be_earlier, tells_at_once
from castile.runtime.backends.cuda.graphs import Captured
from castile.runtime.backends.cuda.lead import Lead
from castile.runtime.backends.cuda.polled import TASK_BY_TASK
from castile.runtime.backends.cuda.streams import Phase, Placed, Seat, issued, pieces, together
from castile.runtime.backends.cuda.supply import NUM_STEPS, Results, Supply
from castile.runtime.comm.looks import reached
from castile.runtime.comm.messages import Request
from castile.runtime.worker import Worker

# Between two looks for transfers that failed; waiting itself is the device's business.
LOOK_NANOSECONDS = 1_000_000
# Steps whose times are kept.
NUM_KNOWN = 9
# Tells all members of a group a number, each once: how to find whether all have come, and where they then stand.
Tell = Callable[[int], tuple[Request, np.ndarray]]


class Issuer(Worker):
    """The steps of one processor, or of several that share the device that is current.

    transfers  what those of the program put onto streams
    ends       bring what a step begins with, which changes from step to step, and take what the host wants of it
    check      raises where a transfer under way has failed; None where none can
    named      the tasks of transfers, by their tag; by their ranks the last one over these. What fails may have either
    tell       tells those with whom there are transfers whether the step was captured here: these are captured by all
               or by none. None where there are none
    lead       that of the device, for steps that are timed
    on_host    kernels among the actions that compute on the host, and so cannot be captured
    uncaptured why a step is not one CUDA graph, "" where it is
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        transfers: Mapping[int, Sequence[Phase]],
        ends: Sequence[tuple[Supply, Results]],
        check: Callable[[], None] | None,
        lead: Callable[[], Lead],
        on_host: Collection[str] = (),
        named: Mapping[Any, int] | None = None,
        tell: Tell | None = None,
    ) -> None:
        steps = together([seat.steps for seat in seats]) if len(seats) > 1 else seats[0].steps
        whole = {task: chain([call for phase in phases for _, call in phase]) for task, phases in transfers.items()}
        for seat in seats:
            whole |= seat.kernels
        super().__init__(steps, [whole[task] for task in steps.tasks])
        self.uncaptured = f"{_listed(on_host)} on the host" if on_host else f"{AT_ONCE} is set" * tells_at_once()
        # Where all streams meet.
        self._origin = seats[0].compute
        self._ends, self._check, self._is_shared = ends, check, len(seats) > 1
        self._named, self._tell = named or {}, tell
        self._agreement: tuple[Request, np.ndarray] | None = None
        self._pieces = pieces(steps, seats, transfers)
        self._calls = issued(self._pieces, self._origin)
        self._clocks, self._lead = Clocks([piece.stream for piece in self._pieces], self._origin), lead
        self._is_alone = tell is None
        self._timed_calls: list[Placed] = []
        # When steps began and ended on the device: that of this step first, then that of the one behind it.
        self._spans = deque((cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(NUM_STEPS))
        # What the last steps took that were one graph.
        self._lasted_ns: deque[float] = deque(maxlen=NUM_KNOWN)
        # whoever ends what a graph has captured may clear this first
        self.captured = Captured()
        weakref.finalize(self, self.captured.clear)
        self._num_steps = 0
        self._timed = self._issued = self._is_followed = False

    @property
    def remark(self) -> str:
        return f"{TASK_BY_TASK}: {self.uncaptured}" if self.uncaptured else ""

    def begin(self, timed: bool = True) -> None:
        """Begins a step; one that is `timed` has an event before and after each task, and is issued task by task."""
        assert self.done and not (timed and self._is_followed), "a step is still under way"
        self.done, self._timed, self._issued, self.position = False, timed, False, 0
        if self._is_followed:
            return
        # Here, as what the next step begins with may come before others have told whether they captured this one.
        try:
            with self._origin:
                self._deliver()
        except Exception as error:
            may_be_earlier(error, self._origin)
            raise

    def begin_ahead(self) -> None:
        """See Worker; done where both steps are one graph, and what the host wants of them has room."""
        are_graphs = self._issued and self._graph is not None and not self._timed
        if not are_graphs or self.done or self._is_followed or not all(results.are_small for _, results in self._ends):
            return
        try:
            with self._origin:
                self._deliver()
                self._launch(*self._spans[1])
        except Exception as error:
            self._locate(error)
            raise
        self._is_followed = True

    def advance(self) -> bool:
        """Issues the step, and later waits for a while; True, since the device goes on by itself, but where others have
        not told yet whether they captured theirs.

        What a device raises at a call may come of one before it: then it raises at every call that follows. What is
        raised when all tasks have been issued may come of any, but where the transfer that failed is known.
        """
        try:
            if self._issued:
                self.done = self._waited()
                if self.done:
                    self._take_stock()
            elif self._is_agreed():
                self._issue()
                self._issued = True
                self._num_steps += 1
            else:
                return False
        except Exception as error:
            self._locate(error)
            raise
        return True

    @property
    def _graph(self) -> Any:
        """That of the step, once it has been captured."""
        return self.captured.graph

    def times(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As every worker's; the device's clock is set by the host's at the beginning of the step."""
        tasks = np.array(self.program.tasks, np.int64)
        at = np.array([piece.at for piece in self._pieces], np.int64)
        begun, ended = np.full(len(tasks), np.iinfo(np.int64).max), np.zeros(len(tasks), np.int64)
        # Other ranks, whose clocks agree with this one's, would leave out other times.
        is_known = self._is_alone and len(self._lasted_ns) > 0
        firsts, lasts = self._clocks.read(median(self._lasted_ns) if is_known else inf)
        np.minimum.at(begun, at, firsts)
        np.maximum.at(ended, at, lasts)
        by_number = np.argsort(tasks)
        return tasks[by_number], begun[by_number], ended[by_number]

    def _issue(self) -> None:
        if self._is_followed:
            # It lies there already.
            self._is_followed = False
            self._spans.rotate(1)
            return
        with self._origin:
            if self._graph is not None and not self._timed:
                # All of them by one call.
                self.position, self._issued = len(self.program.tasks) - 1, True
                self._launch(*self._spans[0])
            else:
                if self._timed:
                    self._run_timed()
                else:
                    self._run(self._calls)
                self._fetch(self._spans[0][1])

    def _deliver(self) -> None:
        for supply, _ in self._ends:
            supply.deliver(self._origin)

    def _launch(self, begin: Any, end: Any) -> None:
        begin.record(self._origin)
        self._graph.launch(self._origin)
        self._fetch(end)

    def _fetch(self, end: Any) -> None:
        """Puts what the host wants of a step behind it, and then the end."""
        for _, results in self._ends:
            results.fetch(self._origin)
        end.record(self._origin)

    def _take_stock(self) -> None:
        """The step has ended."""
        for _, results in self._ends:
            results.come()
        if self._graph is not None and not self._timed:
            elapsed = cupy.cuda.get_elapsed_time(*self._spans[0])
            self._lasted_ns.append(NANOSECONDS_PER_MILLISECOND * elapsed)

    def _run_timed(self) -> None:
        if not self._timed_calls:
            actions = self._clocks.around([piece.action for piece in self._pieces])
            timed = [replace(piece, action=action) for piece, action in zip(self._pieces, actions, strict=True)]
            self._timed_calls = issued(timed, self._origin)
        # A first step may load and allocate, for which CUDA may wait; one that is no graph has the host's times.
        has_lead = self._num_steps > 0 and not self.uncaptured
        self._clocks.start(self._lead() if has_lead else None)
        self._run(self._timed_calls)

    def _run(self, calls: Sequence[Placed]) -> None:
        for self.position, call in calls:
            call()

    def _waited(self) -> bool:
        """Whether the step has ended, after a while at most where there are transfers that may fail."""
        end = self._spans[0][1]
        if self._check is None:
            end.synchronize()
            return True
        until = time.perf_counter_ns() + LOOK_NANOSECONDS
        while not reached(end):
            if time.perf_counter_ns() >= until:
                self._check()
                return False
            # Other threads make the next step's samples.
            time.sleep(0)
        return True

    def _locate(self, error: Exception) -> None:
        """Stands where an error may come of: one that knows its transfers is of none after those, but where the device
        has failed too.
        """
        transfer = self._named.get(getattr(error, "which", None))
        if may_be_earlier(error, self._origin):
            self.late = True
        elif transfer is not None:
            self.position, self.late = self.program.tasks.index(transfer), getattr(error, "late", False)
        else:
            self.late = self._issued

    def _is_agreed(self) -> bool:
        """Whether it is known if this step is one graph, which the second one makes: the first may load and allocate.

        Whether a call of NCCL's is captured must be the same on all ranks that it is of.
        """
        if self._timed or not self._num_steps:
            return True
        if self._graph is None and not self.uncaptured:
            with self._origin:
                self._capture()
        if self._tell is None:
            return True
        self._agreement = self._agreement or self._tell(self._graph is not None)
        request, captured = self._agreement
        if not request.poll():
            if self._check is not None:
                self._check()
            return False
        if not captured.all():
            self.captured.clear()
            self.uncaptured = self.uncaptured or "another rank's cannot be captured"
        self._tell = None
        return True

    def _capture(self) -> None:
        is_one = all(piece.stream is self._origin for piece in self._pieces)
        try:
            self.captured.take(self._origin, partial(self._run, self._calls), is_one)
        except Exception as error:
            # What has failed for another reason would fail again; but of contexts in one graph not much is known.
            over_contexts = self._is_shared and isinstance(error, cupy.cuda.runtime.CUDARuntimeError)
            if "captur" not in str(error).lower() and not over_contexts:
                raise
            self.uncaptured = f"it cannot be captured ({error})"


def _listed(names: Collection[str]) -> str:
    """The names with their verb."""
    return f"{', '.join(sorted(names))} {'is' if len(names) == 1 else 'are'} computed"

"""A worker that polls transfers of the host's, while kernels lie on a stream: where GPUs cannot talk to each other.

A kernel counts as done when it has been issued, since what is issued later comes after it. It does not know what the
calls do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from castile.runtime.backends.cuda.clocks import Clocks
from castile.runtime.backends.cuda.faults import may_be_earlier
from castile.runtime.comm.looks import idle
from castile.runtime.comm.staged import StagedEnd
from castile.runtime.executor import Program
from castile.runtime.worker import Action, Worker

TASK_BY_TASK = "a step is issued task by task, not as one CUDA graph"


class Polled(Worker):
    """One processor's steps: kernels on the stream `compute` of the device that is current, transfers as requests.

    deliver  puts onto that stream what a step begins with, which changes from step to step
    """

    remark = f"{TASK_BY_TASK}: transfers go by way of the host"

    def __init__(
        self, steps: Program, actions: Sequence[Action], compute: Any, end: StagedEnd, deliver: Action
    ) -> None:
        super().__init__(steps, actions)
        self._compute, self._end, self._deliver = compute, end, deliver
        self._kernels = [n for n, moves in enumerate(steps.asynchronous) if not moves]
        self._clocks = Clocks([compute] * len(self._kernels), compute)
        self._plain, self._timed = self.actions, self.actions

    def begin(self, timed: bool = True) -> None:
        """Begins a step; one that is `timed` has an event before and after each kernel."""
        super().begin(timed)
        try:
            self._deliver()
            if timed:
                around = self._clocks.around([self._plain[n] for n in self._kernels])
                kernels = dict(zip(self._kernels, around, strict=True))
                self._timed = tuple(kernels.get(n, action) for n, action in enumerate(self._plain))
                self._clocks.start()
        except Exception as error:
            may_be_earlier(error, self._compute)
            raise
        self.actions = self._timed if timed else self._plain

    def advance(self) -> bool:
        """As every worker's; while the device is busy it goes on by itself, and nobody else is waited for.

        What a device raises may come of any kernel that was issued: then it raises at every call that follows.
        """
        try:
            busy = self._is_busy()
            with self._compute:
                moved = super().advance()
            if self.done:
                self._compute.synchronize()
            return moved or busy or self._is_busy()
        except Exception as error:
            self.late = may_be_earlier(error, self._compute)
            if self.late:
                self.position = self._executor.furthest
            raise

    def _is_busy(self) -> bool:
        return self._end.copies or not idle(self._compute)

    def times(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As every worker's: kernels by the device's clock, transfers by the host's."""
        tasks, begun, ended = super().times()
        at = np.searchsorted(tasks, np.array(self.program.tasks, np.int64)[self._kernels])
        begun, ended = begun.copy(), ended.copy()
        begun[at], ended[at] = self._clocks.read()
        return tasks, begun, ended

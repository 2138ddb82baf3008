"""Stopping: a signal that asks a rank to stop becomes a step after which all ranks stop.

It does not know what is saved before the job ends.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any

from castile.launch.processes.signals import SIGNALS, handle, heard, meant, restore
from castile.runtime.comm.base import Communicator

# Agreeing takes some tens of microseconds, so it is done about this often and not after every short step.
ROUND_SECONDS = 0.1
# Steps may grow long within a round, and a signal goes unheard until its end: of so many the agreeing is hardly felt.
MOST_STEPS_A_ROUND = 100


class Stopping:
    """While it is entered, signals ask to stop; `after(step)` is true on all ranks after the same step."""

    def __init__(self, comm: Communicator, signals: Iterable[signal.Signals] = SIGNALS) -> None:
        self._comm = comm
        self._signals = tuple(signals)
        self._previous: dict[signal.Signals, Any] = {}
        self.name = ""
        self._round_step = -1
        # When the ranks last asked each other, and after which step; nothing is known of steps before.
        self._asked: tuple[float, int] | None = None

    def __enter__(self) -> Stopping:
        # Only the main thread may set handlers.
        self._previous = handle(dict.fromkeys(heard(self._signals), self._note))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        restore(self._previous)

    def after(self, step: int) -> bool:
        """Whether to stop after this step; every rank calls it after each of the same steps."""
        if self._comm.size == 1:
            return bool(self.name)
        if step < self._round_step:
            return False
        gathered = self._comm.gather_bytes(self.name.encode())
        answer = self._comm.bcast_bytes(self._answer(step, gathered) if gathered is not None else None)
        if answer[:1] == b"!":
            self.name = answer[1:].decode()
            return True
        self._round_step = step + int(answer)
        return False

    def now(self) -> bool:
        """Whether any rank was asked to stop until now; every rank calls it."""
        gathered = self._comm.gather_bytes(self.name.encode())
        answer = self._comm.bcast_bytes(next(filter(None, gathered), b"") if gathered is not None else None)
        # a signal that came after this rank was asked is told when all are asked again
        if answer:
            self.name = answer.decode()
        return bool(answer)

    def _answer(self, step: int, gathered: list[bytes]) -> bytes:
        """Rank 0's: the signal that any rank was given, or in how many steps the ranks ask again."""
        asked = next(filter(None, gathered), None)
        if asked is not None:
            return b"!" + asked
        now, before = time.perf_counter(), self._asked
        self._asked = now, step
        if before is None:
            return b"1"
        each = (now - before[0]) / (step - before[1])
        return str(min(MOST_STEPS_A_ROUND, int(ROUND_SECONDS / each))).encode()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.name = meant(number)

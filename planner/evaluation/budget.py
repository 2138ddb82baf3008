"""Budgets: how long a search may run, in proposals or seconds, and how users write that.

It does not know searches.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from castile.runtime.compiled import compiling_seconds


def clock() -> float:
    """Seconds on the clock of all searches, which leaves out compiling loops: each installation does that once."""
    return time.perf_counter() - compiling_seconds()


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Budget:
    """How long a search may run: a number of proposals, or seconds.

    patient   with proposals: a search that still improves in the second half of its proposals goes on
    is_over   polled by the search: once true, the search ends with its best plan so far
    before    seconds of a time limit that were spent before this budget, which is the rest
    """

    proposals: int | None = None
    seconds: float | None = None
    patient: bool = False
    is_over: Callable[[], bool] = _never
    before: float = 0.0

    def begun(self, times: float = 1.0) -> Budget:
        """Start the clock: a copy of which a budget in seconds is over after `times` its seconds from now on."""
        if self.seconds is None:
            return self
        end = clock() + times * self.seconds
        return replace(self, is_over=lambda: self.is_over() or clock() >= end)

    def share(self, count: int) -> Budget:
        """One of `count` equal parts of the budget, without patience."""
        if self.proposals is not None:
            return replace(self, proposals=max(1, self.proposals // count), patient=False)
        assert self.seconds is not None
        return replace(self, seconds=self.seconds / count)


def parse_budget(text: str) -> Budget:
    """The budget that a user writes: 5000 (proposals), 5000+ (patient) or 10s. Raises ValueError for anything else."""
    if re.fullmatch(r"[0-9]{1,12}\+?", text) and int(text.rstrip("+")) > 0:
        return Budget(proposals=int(text.rstrip("+")), patient=text.endswith("+"))
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?s", text) and float(text[:-1]) > 0:
        return Budget(seconds=float(text[:-1]))
    raise ValueError(f"budget {text!r}: give a number of proposals such as 5000, or a time such as 10s")

"""The watchdog: finds the rank that keeps others waiting when a step makes no progress for far too long.

Ranks that wait tell each other for which ranks. A rank that is waited for and tells nothing has stopped, hangs, or is
far too slow: it is named, and after a longer time without progress the job ends. It does not know tasks, nor how notes
are sent.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from castile.runtime.comm.base import Aside

# The time without progress after which the user is told, and after which the job ends; for long steps these multiples
# of the time that a step should take.
TELL_SECONDS, LIMIT_SECONDS = 30.0, 600.0
TELL_STEPS, LIMIT_STEPS = 20.0, 100.0
# How often a rank checks its progress, and how often it tells others that it waits; a rank counts as silent after the
# third time.
LOOK_SECONDS, RENEW_SECONDS, SILENT_SECONDS = 0.25, 1.0, 3.0
# The most waiting that counts between two looks: a rank that was stopped itself has not waited meanwhile.
MOST_BETWEEN_SECONDS = 1.0


class Unanswered(RuntimeError):
    """A rank has made no progress for so long that the job ends; the text is a sentence that names it."""


class Waits(NamedTuple):
    """The ranks for which a rank waits, and where, in words: `step 7, task all_reduce fc1.weight`."""

    ranks: Collection[int]
    where: str


def say(text: str) -> None:
    """Tell the user."""
    print(f"castile: {text}", file=sys.stderr, flush=True)


class Watchdog:
    """Watches a rank's own waiting.

    due                           when `look` is to be called next, by perf_counter
    aside                         sends notes between ranks
    expected_seconds              the time that a step should take
    tell_seconds, limit_seconds   as TELL_SECONDS and LIMIT_SECONDS
    tell                          called once, on one of the waiting ranks, with the sentence for users
    """

    def __init__(
        self,
        aside: Aside,
        expected_seconds: float = 0.0,
        tell_seconds: float = TELL_SECONDS,
        limit_seconds: float = LIMIT_SECONDS,
        tell: Callable[[str], None] = say,
    ) -> None:
        self.due = 0.0
        self._aside, self._tell, self._expected_seconds = aside, tell, expected_seconds
        self._tell_seconds = max(tell_seconds, TELL_STEPS * expected_seconds)
        self._limit_seconds = max(limit_seconds, LIMIT_STEPS * expected_seconds)
        self._progress: Hashable = None
        self._looked = self._waited = self._posted = 0.0
        self._has_complained = False
        # by waiting rank: when it said so last, and for which ranks it waits
        self._heard: dict[int, tuple[float, set[int]]] = {}

    def look(self, progress: Hashable, waits: Callable[[], Waits]) -> None:
        """Check how long there was no progress. Raises Unanswered where that is too long.

        progress   a value that differs whenever there was progress
        """
        now = perf_counter()
        between, self._looked, self.due = min(now - self._looked, MOST_BETWEEN_SECONDS), now, now + LOOK_SECONDS
        if progress != self._progress:
            self._progress, self._waited, self._has_complained = progress, 0.0, False
            return
        before = self._waited
        self._waited += between
        if self._waited >= self._tell_seconds:
            if before < self._tell_seconds:
                # notes about earlier waits do not count
                self._aside.received()
                self._heard.clear()
                self._posted = 0.0
            self._ask(now, waits())

    @contextmanager
    def over(self, waits: Waits) -> Iterator[None]:
        """A context in which all ranks meet in collectives, and none has a reason to keep others waiting."""

        def attend() -> None:
            if perf_counter() >= self.due:
                self.look((waits.where, self._aside.met), lambda: waits)

        self._aside.attend = attend
        try:
            yield
        finally:
            self._aside.attend = None

    def _ask(self, now: float, mine: Waits) -> None:
        if now - self._posted >= RENEW_SECONDS:
            self._aside.tell(array("i", mine.ranks).tobytes())
            self._posted = now
        for rank, note in self._aside.received().items():
            self._heard[rank] = now, set(array("i", note))
        if self._waited < self._tell_seconds + SILENT_SECONDS:
            return
        waiting = {rank: ranks for rank, (when, ranks) in self._heard.items() if now - when < SILENT_SECONDS}
        waiting[self._aside.rank] = set(mine.ranks)
        silent = sorted(set().union(*waiting.values()) - waiting.keys())
        if not self._has_complained:
            self._has_complained = True
            # one of the waiting ranks tells the user
            if self._aside.rank == min(waiting):
                left = self._limit_seconds - self._waited
                then = f"; the job ends if nothing goes on for another {left:.0f} s" if left > 0 else ""
                self._tell(f"{self._complaint(silent, mine)}{then}")
        if self._waited >= self._limit_seconds:
            raise Unanswered(f"{self._complaint(silent, mine)}, and the job ends with it")

    def _complaint(self, silent: list[int], mine: Waits) -> str:
        waited = f"{self._waited:.0f} s"
        should = f"a step should take {self._expected_seconds:.3g} s"
        if not silent:
            return f"in {mine.where} nothing has gone on for {waited} on any rank ({should}): all wait for each other"
        names = " and ".join(f"rank {rank} on {self._aside.hosts[rank]}" for rank in silent)
        has = "have" if len(silent) > 1 else "has"
        hangs = "they hang or are" if len(silent) > 1 else "it hangs or is"
        return (
            f"{names} {has} not answered for {waited}, and rank {self._aside.rank} on "
            f"{self._aside.hosts[self._aside.rank]} waits in {mine.where} ({should}): {hangs} stopped, or far too slow"
        )

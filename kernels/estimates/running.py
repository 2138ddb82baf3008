"""A program of a kernel as it runs: its registers, and what it has done until now.

It does not know which of its turns are alike, nor what is made of what it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from castile.kernels.estimates.sectors import Memory, Touch
from castile.kernels.estimates.text import Idle, Step, Text, Value

_WARP = 32
_TRUE = np.array([True])


class Run:
    """The registers of a program's threads while its lines are worked out.

    at         the item of the text that comes next
    known      registers that are known, by name
    fetching   registers that wait for memory
    tally      instructions, and by ("waits", num) waits where so many groups of copies may still be on their way
    came_back  whether the last item was a branch to one before it
    trace      what was compared, the difference of both sides, and touched, of all that was done since it was cleared
    """

    def __init__(
        self, text: Text, threads: int, program: Sequence[int], programs: Sequence[int], params: Sequence[Value]
    ) -> None:
        self.text, self.threads, self.params = text, threads, params
        self.num_warps, self.warp = -(-threads // _WARP), np.arange(threads) // _WARP
        self.at = 0
        self.known: dict[str, Value] = {**text.numbers, "%tid.x": np.arange(threads)}
        for axis, number, size in zip("xyz", program, programs, strict=True):
            self.known |= {f"%ctaid.{axis}": np.array([number]), f"%nctaid.{axis}": np.array([size])}
        self.memory, self.tally = Memory(), Counter[Any]()
        self.fetching: set[str] = set()
        # Whether any of what is fetched was wanted since the last time it was waited for.
        self.wanted = False
        self.came_back = False
        self.trace: list[Touch | Value] = []

    def copied(self) -> Run:
        """One that goes on from here by itself, with nothing in its trace."""
        other = copy(self)
        other.known, other.tally, other.memory = self.known.copy(), self.tally.copy(), self.memory.copied()
        other.fetching, other.trace = self.fetching.copy(), []
        return other

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        if self.at >= len(self.text.items):
            return True
        item = self.text.items[self.at]
        return isinstance(item, Step) and item.word == "ret"

    def goes_on(self) -> None:
        """Work out the next item."""
        here, item = self.at, self.text.items[self.at]
        self.at += 1
        self.came_back = False
        self.tally["instructions"] += self.num_warps * (item.num if isinstance(item, Idle) else 1)
        if isinstance(item, Step) and item.is_branch:
            self.waits()
            to = self.text.labels[item.groups[0][0]]
            if self._leaps(item, to <= here):
                self.at, self.came_back = to, to <= here
            return
        self.wanted = self.wanted or not self.fetching.isdisjoint(item.reads)
        if isinstance(item, Step):
            self._does(item)

    def waits(self) -> None:
        """All that was asked for has come, if any of it was wanted."""
        if self.wanted:
            self.tally["waits", 0] += 1
            self.fetching.clear()
        self.wanted = False

    def _holds(self, step: Step) -> Value:
        """Where its predicate lets it run; None where that is not known."""
        if not step.when:
            return _TRUE
        met = self.known.get(step.when)
        return None if met is None else ~met if step.unless else met

    def _leaps(self, step: Step, back: bool) -> bool:
        """Whether a branch is taken: back if any thread goes there, and forth if all do."""
        met = self._holds(step)
        return met is not None and bool(met.any() if back else met.all())

    def _does(self, step: Step) -> None:
        """Work out one line that is no branch."""
        met = self._holds(step)
        if step.is_access:
            self._touches(step, met)
        elif step.expects is not None:
            self.memory.fetched(step.expects if met is None or met.any() else 0)
        elif step.waits:
            self.waits()
        elif step.behind is not None:
            self.tally["waits", step.behind] += 1
        value = self._result(step)
        for name in step.writes:
            self.known[name] = value if met is None or met.all() else _either(met, value, self.known.get(name))

    def _values(self, names: Sequence[str]) -> list[Value] | None:
        """What these registers and numbers are; None where one is not known."""
        values = [self.known.get(name) for name in names]
        return None if any(value is None for value in values) else values

    def _result(self, step: Step) -> Value:
        if step.parameter is not None:
            return self.params[step.parameter]
        if step.compute is None or (values := self._values(step.operands)) is None:
            return None
        if step.word.startswith("setp"):
            self.trace.append(values[0] - values[1])
        return step.compute(*values)

    def _touches(self, step: Step, met: Value) -> None:
        """Threads read or write memory."""
        if step.word.startswith("ld"):
            self.fetching |= set(step.writes)
        if step.size and (here := self.known.get(step.size)) is not None and met is not None:
            met = met & (here > 0)
        if met is not None and not met.any():
            return
        parts = self._values(step.address)
        if parts is None:
            self.memory.fetched(step.nbytes * self.threads)
            return
        here = np.broadcast_to(_TRUE if met is None else met, (self.threads,))
        addresses = np.broadcast_to(sum(parts), (self.threads,))
        writes, past = step.word.startswith("st"), step.word.startswith("cp.async.cg.")
        self.trace.append(self.memory.asked(addresses[here], self.warp[here], step.nbytes, writes, past))


def _either(met: Value, value: Value, old: Value) -> Value:
    """A result where a predicate lets it be written, and what was there elsewhere."""
    return old if not met.any() else None if value is None or old is None else np.where(met, value, old)

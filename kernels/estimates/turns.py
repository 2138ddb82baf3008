"""Turns of a loop that do what those before them did: they are counted without being followed.

That they do is seen at the first of them and at the last. It does not know what is counted, nor what a turn is for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from castile.kernels.estimates.running import Run
from castile.kernels.estimates.sectors import SECTOR, Touch
from castile.kernels.estimates.text import Value

# Steps of rings go round in so many turns at most, and fewer are not worth a leap.
_LONGEST, _LEAST = 8, 4
# Of turns that nothing is seen to end: more than registers count.
_ENDLESS = 1 << 31
# What is kept of turns, in comparisons and touches: what is longer is followed.
_MOST_TRACED = 4_000


@dataclass(frozen=True)
class _Mark:
    """A program where it goes back to the first line of a loop; `traced` is how long its trace is there."""

    known: dict[str, Value]
    tally: Counter[Any]
    touched: Counter[Any]
    clock: int
    fetching: frozenset[str]
    traced: int

    @classmethod
    def of(cls, run: Run) -> _Mark:
        """One of a program as it is now."""
        memory = run.memory
        return cls(run.known.copy(), run.tally.copy(), memory.tally.copy(), memory.clock, frozenset(run.fetching),
                   len(run.trace))  # fmt: skip


class Turns:
    """What was seen of a program's loops, by the item that each begins with."""

    def __init__(self) -> None:
        self._marks: dict[int, list[_Mark]] = {}
        self._seen = Counter[int]()

    def leapt(self, run: Run) -> Run:
        """The program, which has gone back to the first line of a loop: after those turns that need not be followed."""
        if len(run.trace) > _MOST_TRACED:
            self._forget(run)
        marks = self._marks.setdefault(run.at, [])
        marks.append(_Mark.of(run))
        del marks[: -2 * _LONGEST - 1]
        self._seen[run.at] += 1
        # What is not alike is looked at seldom.
        if self._seen[run.at].bit_count() == 1:
            for turns in range(1, (len(marks) + 1) // 2):
                pace = _pace(run, *marks[:: -turns][:3])
                if pace and (ahead := _ahead(run, pace)):
                    self._forget(ahead)
                    return ahead
        return run

    def _forget(self, run: Run) -> None:
        # Turns before have not left all that they touched.
        self._marks.clear()
        self._seen.clear()
        run.trace.clear()


@dataclass(frozen=True)
class _Pace:
    """What a turn, or several, that is alike the one before adds to registers, and to what is counted.

    trace   what it compared and touched
    steps   what it added to each of these: to differences, and to addresses
    """

    known: dict[str, Value]
    tally: Counter[Any]
    touched: Counter[Any]
    ticks: int
    trace: list[Touch | Value]
    steps: list[Value]

    @property
    def num(self) -> int:
        """How many more turns are alike, as far as comparisons say: in them none comes out otherwise."""
        gaps = [(one, step) for one, step in zip(self.trace, self.steps, strict=True) if not isinstance(one, Touch)]
        return min((_before_zero(gap, step) for gap, step in gaps), default=_ENDLESS)

    @property
    def shifts(self) -> list[tuple[Touch, int]]:
        """What it touched, and by how many sectors that moved."""
        each = zip(self.trace, self.steps, strict=True)
        return [(one, int(step[0]) // SECTOR) for one, step in each if isinstance(one, Touch)]


def _pace(run: Run, last: _Mark, before: _Mark, first: _Mark) -> _Pace | None:
    """What was done both between the last two of these marks and between the first two; None where it is not alike."""
    tally, touched = _difference(last.tally, before.tally), _difference(last.touched, before.touched)
    if (
        last.known.keys() != first.known.keys()
        or not last.fetching == before.fetching == first.fetching
        or tally != _difference(before.tally, first.tally)
        or touched != _difference(before.touched, first.touched)
    ):
        return None
    known = {name: _step(value, before.known[name], first.known[name]) for name, value in last.known.items()}
    trace, same = run.trace[before.traced : last.traced], run.trace[first.traced : before.traced]
    if len(trace) != len(same) or any(step is None for step in known.values()):
        return None
    steps = [_step(_numbers(one), _numbers(other)) for one, other in zip(trace, same, strict=True)]
    if any(step is None for step in steps):
        return None
    if not all(_is_whole(step) for one, step in zip(trace, steps, strict=True) if isinstance(one, Touch)):
        return None
    return _Pace(known, tally, touched, last.clock - before.clock, trace, steps)


def _ahead(run: Run, pace: _Pace) -> Run | None:
    """The program after as many turns of that pace as there are, and one that was followed; None where few are."""
    num = pace.num - 1
    while num >= _LEAST:
        if found := _leap(run, pace, num):
            return found
        num //= 4
    return None


def _leap(run: Run, pace: _Pace, num: int) -> Run | None:
    """The program after so many turns of that pace and one that was followed; None where that one is not alike.

    What is made of numbers that grow steadily, and has grown as steadily at the end, has done so in between.
    """
    ahead = run.copied()
    if not ahead.memory.goes_on(pace.shifts, num, pace.ticks):
        return None
    ahead.known |= {name: run.known[name] + num * step for name, step in pace.known.items() if step is not _STILL}
    ahead.tally, ahead.memory.tally = _more(run.tally, pace.tally, num), _more(run.memory.tally, pace.touched, num)
    tally, touched = _more(ahead.tally, pace.tally, 1), _more(ahead.memory.tally, pace.touched, 1)
    while not ahead.is_over and ahead.tally["instructions"] < tally["instructions"]:
        ahead.goes_on()
    is_alike = (
        ahead.at == run.at
        and ahead.came_back
        and ahead.fetching == run.fetching
        and ahead.tally == tally
        and ahead.memory.tally == touched
        and len(ahead.trace) == len(pace.trace)
        and all(_is_further(ahead.known[name], run.known[name], step, num + 1) for name, step in pace.known.items())
        and all(
            _is_further(_numbers(new), _numbers(old), step, num + 1)
            for new, old, step in zip(ahead.trace, pace.trace, pace.steps, strict=True)
        )
    )
    return ahead if is_alike else None


# What has not changed.
_STILL = np.array([0])


def _numbers(traced: Touch | Value) -> Value:
    return traced.addresses if isinstance(traced, Touch) else traced


def _step(new: Value, old: Value, older: Value = None) -> Value:
    """What was added to a register; None where it is nothing that could be added again, or was not added before."""
    if new is old:
        return _STILL
    if new is None or old is None or new.shape != old.shape or new.dtype != old.dtype:
        return None
    step = _STILL if np.array_equal(new, old) else None if new.dtype == bool else new - old
    return step if older is None or step is None or _is_further(old, older, step, 1) else None


def _is_further(new: Value, old: Value, step: Value, num: int) -> bool:
    """Whether a register has become what so many of these steps make of it."""
    if new is None or old is None:
        return new is old
    return np.array_equal(new, old if step is _STILL else old + num * step)


def _is_whole(step: Value) -> bool:
    """Whether all addresses moved by the same whole sectors."""
    return bool((step == step[0]).all() and step[0] % SECTOR == 0)


def _before_zero(gap: Value, step: Value) -> int:
    """How many steps leave each of these numbers on the side of zero on which it is."""
    met = (step != 0) & ((gap == 0) | ((gap > 0) != (step > 0)))
    return int(((np.abs(gap) - 1) // np.maximum(np.abs(step), 1))[met].min()) if met.any() else _ENDLESS


def _difference(more: Counter[Any], less: Counter[Any]) -> Counter[Any]:
    """What was counted in between."""
    return Counter({word: num - less[word] for word, num in more.items() if num != less[word]})


def _more(counts: Counter[Any], step: Counter[Any], num: int) -> Counter[Any]:
    """What is counted after so many of these steps."""
    found = counts.copy()
    found.update({word: num * each for word, each in step.items()})
    return found

"""Skips iterations of loops that repeat those before them: they are counted without being executed.

The first iterations and the last one are executed to check that. It does not know what is counted, nor what a loop
computes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from castile.kernels.estimates.ptx import Value
from castile.kernels.estimates.ptx_interpreter import Interpreter
from castile.kernels.estimates.sectors import SECTOR, Touch

# Steps of rings go round in so many turns at most, and fewer are not worth a leap.
_LONGEST, _LEAST = 8, 4
# Of turns that nothing is seen to end: more than registers count.
_ENDLESS = 1 << 31
# What is kept of turns, in comparisons and touches: what is longer is followed.
_MOST_TRACED = 4_000


@dataclass(frozen=True)
class _Snapshot:
    """The state of a program where it jumps back to a loop's first instruction; `traced` is the length of its trace."""

    registers: dict[str, Value]
    tally: Counter[Any]
    touched: Counter[Any]
    clock: int
    fetching: frozenset[str]
    traced: int

    @classmethod
    def of(cls, run: Interpreter) -> _Snapshot:
        """The state of a program now."""
        memory = run.memory
        return cls(run.registers.copy(), run.tally.copy(), memory.tally.copy(), memory.clock, frozenset(run.fetching),
                   len(run.trace))  # fmt: skip


class LoopSkipper:
    """The snapshots of a program's loops, by the item that each loop begins with."""

    def __init__(self) -> None:
        self._marks: dict[int, list[_Snapshot]] = {}
        self._seen = Counter[int]()

    def skip_ahead(self, run: Interpreter) -> Interpreter:
        """The program, which has jumped back to a loop's first instruction, after those iterations that need not be
        executed.
        """
        if len(run.trace) > _MOST_TRACED:
            self._forget(run)
        marks = self._marks.setdefault(run.position, [])
        marks.append(_Snapshot.of(run))
        del marks[: -2 * _LONGEST - 1]
        self._seen[run.position] += 1
        # What is not alike is looked at seldom.
        if self._seen[run.position].bit_count() == 1:
            for turns in range(1, (len(marks) + 1) // 2):
                pace = _steady_iteration(run, *marks[:: -turns][:3])
                if pace and (ahead := _furthest_skip(run, pace)):
                    self._forget(ahead)
                    return ahead
        return run

    def _forget(self, run: Interpreter) -> None:
        # Turns before have not left all that they touched.
        self._marks.clear()
        self._seen.clear()
        run.trace.clear()


@dataclass(frozen=True)
class _Iteration:
    """What one iteration, or several together, adds to registers and counts, where it repeats the one before.

    trace   what was compared and touched
    steps   what was added to each of these: to differences, and to addresses
    """

    registers: dict[str, Value]
    tally: Counter[Any]
    touched: Counter[Any]
    ticks: int
    trace: list[Touch | Value]
    steps: list[Value]

    @property
    def num(self) -> int:
        """How many more iterations repeat it, as far as comparisons say: none of them comes out otherwise."""
        gaps = [(one, step) for one, step in zip(self.trace, self.steps, strict=True) if not isinstance(one, Touch)]
        return min((_before_zero(gap, step) for gap, step in gaps), default=_ENDLESS)

    @property
    def shifts(self) -> list[tuple[Touch, int]]:
        """What was touched, and by how many sectors it moved."""
        each = zip(self.trace, self.steps, strict=True)
        return [(one, int(step[0]) // SECTOR) for one, step in each if isinstance(one, Touch)]


def _steady_iteration(run: Interpreter, last: _Snapshot, before: _Snapshot, first: _Snapshot) -> _Iteration | None:
    """What happened both between the last two snapshots and between the first two; None where these differ."""
    tally, touched = _difference(last.tally, before.tally), _difference(last.touched, before.touched)
    if (
        last.registers.keys() != first.registers.keys()
        or not last.fetching == before.fetching == first.fetching
        or tally != _difference(before.tally, first.tally)
        or touched != _difference(before.touched, first.touched)
    ):
        return None
    known = {
        name: _step(value, before.registers[name], first.registers[name]) for name, value in last.registers.items()
    }
    trace, same = run.trace[before.traced : last.traced], run.trace[first.traced : before.traced]
    if len(trace) != len(same) or any(step is None for step in known.values()):
        return None
    steps = [_step(_numbers(one), _numbers(other)) for one, other in zip(trace, same, strict=True)]
    if any(step is None for step in steps):
        return None
    if not all(_is_whole(step) for one, step in zip(trace, steps, strict=True) if isinstance(one, Touch)):
        return None
    return _Iteration(known, tally, touched, last.clock - before.clock, trace, steps)


def _furthest_skip(run: Interpreter, pace: _Iteration) -> Interpreter | None:
    """The program after as many such iterations as possible and one that was executed; None where they are few."""
    num = pace.num - 1
    while num >= _LEAST:
        if found := _skip(run, pace, num):
            return found
        num //= 4
    return None


def _skip(run: Interpreter, pace: _Iteration, num: int) -> Interpreter | None:
    """The program after `num` such iterations and one that was executed; None where that one differs.

    Whatever is computed from numbers that grow steadily, and has grown as steadily at the end, did so in between.
    """
    ahead = run.copied()
    if not ahead.memory.repeat(pace.shifts, num, pace.ticks):
        return None
    ahead.registers |= {
        name: run.registers[name] + num * step for name, step in pace.registers.items() if step is not _STILL
    }
    ahead.tally, ahead.memory.tally = _more(run.tally, pace.tally, num), _more(run.memory.tally, pace.touched, num)
    tally, touched = _more(ahead.tally, pace.tally, 1), _more(ahead.memory.tally, pace.touched, 1)
    while not ahead.is_over and ahead.tally["instructions"] < tally["instructions"]:
        ahead.step()
    is_alike = (
        ahead.position == run.position
        and ahead.jumped_back
        and ahead.fetching == run.fetching
        and ahead.tally == tally
        and ahead.memory.tally == touched
        and len(ahead.trace) == len(pace.trace)
        and all(
            _is_further(ahead.registers[name], run.registers[name], step, num + 1)
            for name, step in pace.registers.items()
        )
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
    """What was added to a register; None where nothing constant was added, in this iteration or the one before."""
    if new is old:
        return _STILL
    if new is None or old is None or new.shape != old.shape or new.dtype != old.dtype:
        return None
    step = _STILL if np.array_equal(new, old) else None if new.dtype == bool else new - old
    return step if older is None or step is None or _is_further(old, older, step, 1) else None


def _is_further(new: Value, old: Value, step: Value, num: int) -> bool:
    """Whether a register has the value that `num` such steps give."""
    if new is None or old is None:
        return new is old
    return np.array_equal(new, old if step is _STILL else old + num * step)


def _is_whole(step: Value) -> bool:
    """Whether all addresses moved by the same number of whole sectors."""
    return bool((step == step[0]).all() and step[0] % SECTOR == 0)


def _before_zero(gap: Value, step: Value) -> int:
    """How many steps leave each of these numbers on its side of zero."""
    met = (step != 0) & ((gap == 0) | ((gap > 0) != (step > 0)))
    return int(((np.abs(gap) - 1) // np.maximum(np.abs(step), 1))[met].min()) if met.any() else _ENDLESS


def _difference(more: Counter[Any], less: Counter[Any]) -> Counter[Any]:
    """What was counted in between."""
    return Counter({word: num - less[word] for word, num in more.items() if num != less[word]})


def _more(counts: Counter[Any], step: Counter[Any], num: int) -> Counter[Any]:
    """The counts after `num` more such steps."""
    found = counts.copy()
    found.update({word: num * each for word, each in step.items()})
    return found

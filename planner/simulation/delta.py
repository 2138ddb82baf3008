"""Delta simulation: a task graph that was simulated changes in places, and only what this moves is timed again.

It does not know where changes come from, nor memory: the peak of a plan is what `simulate` says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, NamedTuple

import numpy as np

from castile.planner.simulation import agenda, retime, solved
from castile.planner.simulation.agenda import NEVER
from castile.planner.simulation.solved import STAYS, Patch, Rows, Solved
from castile.runtime.compiled import compiled
from castile.runtime.task import NUM_LANES, TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

FORMS = ("auto", "plain")


@dataclass(frozen=True, eq=False)
class Change:
    """Tasks that go and C tasks that come; a task that changes in any way goes and comes.

    Tasks have numbers, which they keep from change to change. A task that stays needs the same numbers as before: what
    needs a number that is there no more goes too.

    removed[R]             numbers of the tasks that go
    number[C]              numbers of the tasks that come: those of tasks that go, or unused ones
    order[C], lasts[C]     the key by which engines break ties, unique in the graph; picoseconds, at least 1
    lane_ptr[C+1], lanes   the lanes that each occupies, as in a TaskGraph
    need_ptr[C+1], needs   the numbers of the tasks that each needs (unique), be they new or not
    """

    removed: np.ndarray
    number: np.ndarray
    order: np.ndarray
    lasts: np.ndarray
    lane_ptr: np.ndarray
    lanes: np.ndarray
    need_ptr: np.ndarray
    needs: np.ndarray


class Delta:
    """A simulated task graph, and what changes would make of it.

    `propose` says how long the step would take after a change, `accept` makes the change last proposed; a proposal
    that is not accepted leaves nothing behind. Times are those of `simulate`, to the picosecond, ties included.

    A step is the sequence of its tasks as they are served, by (ready, order), and a change leaves stretches of it as
    they were, each at its own distance in time. Tasks are served one by one from where the change begins to show until
    all that is under way is as it was before, earlier or later by one distance; from there everything is as it was up
    to the next place of the change, and is not looked at. To time again only what moves is the idea of FlexFlow's
    delta simulation (Jia, Zaharia, Aiken, MLSys 2019, algorithm 2), which visits each task that moves.

    size        the numbers of all tasks lie below it; not each must be in use
    num_timed   how many tasks the last proposal served one by one
    """

    def __init__(self, num_procs: int, engines: Sequence[int], form: str = "auto") -> None:
        if form not in FORMS:
            raise ValueError(f"delta form {form!r} is unknown; choose one of {', '.join(FORMS)}")
        assert len(engines) == NUM_LANES
        places = np.arange(num_procs)[:, None] * (max(engines) + 1) + np.asarray(engines)
        self._engine = np.ascontiguousarray(places.ravel(), np.int32)
        self._num_engines = int(self._engine.max(initial=-1)) + 1
        self._bodies = BODIES if form == "plain" else _compiled_bodies()
        self._rows, self._solved = solved.empty(self._num_engines)
        self._num_lanes, self._num_needs, self._epoch = 0, 0, 0
        self._patch, self._work = solved.room(0, self._num_engines)
        self._agenda = agenda.room(0)
        self._proposed: tuple[np.ndarray, Rows, int, int] | None = None
        self.size = self.num_timed = 0

    @classmethod
    def of(cls, graph: TaskGraph, durations: np.ndarray, engines: Sequence[int], form: str = "auto") -> Delta:
        """The simulation of a graph; a task's number is its index. durations[c] are the picoseconds of cost key c."""
        delta = cls(graph.num_procs, engines, form)
        lasts = np.maximum(np.asarray(durations, np.int64)[graph.cost], 1)
        pointers = graph.lane_ptr, graph.lanes, graph.need_ptr, graph.needs
        delta.propose(Change(np.zeros(0, np.int64), np.arange(graph.num_tasks), graph.order, lasts, *pointers))
        delta.accept()
        return delta

    @property
    def num_tasks(self) -> int:
        return len(self._solved.seq)

    @property
    def seconds(self) -> float:
        """How long the step takes."""
        return float(self._solved.high[-1]) / PICOSECONDS if self.num_tasks else 0.0

    @property
    def timeline(self) -> Timeline:
        """When each task runs, ordered by number."""
        return self.spans(np.sort(self._solved.seq).astype(np.int64))

    def spans(self, numbers: np.ndarray) -> Timeline:
        """When the tasks of these numbers run."""
        end = self._solved.end[self._solved.pos[numbers]]
        return Timeline(numbers, end - self._rows.lasts[numbers], end)

    def propose(self, change: Change, limit: float = inf) -> float | None:
        """Seconds of the step after the change; None where they are more than `limit`."""
        removed, most = _int32(change.removed), latest(limit)
        come, patch = self._entered(change, removed)
        bodies, rows, solved = self._bodies, self._rows, self._solved
        bodies.resolve(self._num_needs, removed, come, self._engine, rows, solved, patch, self._work)
        # A bucket of time for every two tasks, if the step lasts as long as before.
        width = int(max(solved.high[-1:], default=0)) // len(self._agenda.first)
        longest, num_out, num_skips, num_served, self._epoch = bodies.retime(
            most, self._epoch, width.bit_length(), self._engine, rows, solved, patch, self._agenda, self._work
        )
        bodies.exchange(patch.number, come, rows)
        patch.fate[removed] = patch.fate[patch.number] = STAYS
        patch.came[rows.needs[self._num_needs : self._num_needs + len(change.needs)]] = -1
        self._proposed, self.num_timed = None, int(num_out)
        if not 0 <= longest <= most:
            return None
        assert num_served == self.num_tasks - len(removed) + len(patch.number), "the changed task graph has a cycle"
        self._proposed = patch.number, come, int(num_out), int(num_skips)
        return float(longest) / PICOSECONDS

    def accept(self) -> None:
        """Make the change that was proposed last, and not refused."""
        assert self._proposed is not None, "there is no proposal"
        number, come, num_out, num_skips = self._proposed
        old, work, bodies = self._solved, self._work, self._bodies
        self.size = max(self.size, int(number.max(initial=-1)) + 1)
        bodies.exchange(number, come, self._rows)
        seq, ready, end, high = bodies.joined(
            old.seq, old.ready, old.end, work.out[:num_out], work.ready, work.done, work.skips[:num_skips]
        )
        rows, self._num_lanes, self._num_needs = bodies.packed(self.size, seq, self._rows)
        self._rows = Rows(*rows)
        pos, follow_lo, follow_hi, follows, num_roots = bodies.followed(self.size, self._num_needs, seq, self._rows)
        loads = bodies.loaded(self._num_engines, self._engine, seq, self._rows)
        self._solved = Solved(seq, pos, ready, end, high, follow_lo, follow_hi, follows, num_roots, loads)
        self._proposed = None

    def _entered(self, change: Change, removed: np.ndarray) -> tuple[Rows, Patch]:
        """Room for all numbers, the rows of the tasks that come, and what the change does to those that are there."""
        number = _int32(change.number)
        size, lanes, needs = max(self.size, int(number.max(initial=-1)) + 1), self._num_lanes, self._num_needs
        if size > len(self._patch.fate):
            self._patch, self._work = solved.room(2 * size, self._num_engines)
            self._agenda = agenda.room(2 * size)
        old = self._rows
        self._rows = Rows(
            _room(old.order, size), _room(old.lasts, size), _room(old.lane_lo, size), _room(old.lane_hi, size),
            _put(old.lanes, lanes, change.lanes), _room(old.need_lo, size), _room(old.need_hi, size),
            _put(old.needs, needs, change.needs),
        )  # fmt: skip
        known = self._solved
        self._solved = known._replace(
            pos=_room(known.pos, size, -1), follow_lo=_room(known.follow_lo, size),
            follow_hi=_room(known.follow_hi, size),
        )  # fmt: skip
        lane_ptr, need_ptr = _int32(change.lane_ptr) + np.int32(lanes), _int32(change.need_ptr) + np.int32(needs)
        come = Rows(
            np.array(change.order, np.int64), np.array(change.lasts, np.int64), lane_ptr[:-1].copy(), lane_ptr[1:],
            self._rows.lanes, need_ptr[:-1].copy(), need_ptr[1:], self._rows.needs,
        )  # fmt: skip
        links = np.empty((2, len(change.needs)), np.int32)
        changed = np.sort(self._solved.pos[removed])
        return come, Patch(changed, number, self._patch.fate, self._patch.came, *links)


class _Bodies(NamedTuple):
    """The functions that do the work."""

    resolve: Callable[..., Any]
    exchange: Callable[..., Any]
    retime: Callable[..., Any]
    joined: Callable[..., Any]
    packed: Callable[..., Any]
    followed: Callable[..., Any]
    loaded: Callable[..., Any]


BODIES = _Bodies(
    solved.resolve, solved.exchange, retime.retime, solved.joined, solved.packed, solved.followed, solved.loaded
)


@cache
def _compiled_bodies() -> _Bodies:
    """The same compiled, where numba is installed."""
    alone = agenda.without_arrays(BODIES[:3], (*retime.PARTS, solved.load, solved.exchange))
    return _Bodies(*alone, *map(compiled, BODIES[3:]))


def latest(limit: float) -> int:
    """The most picoseconds that a step may take whose seconds shall not exceed `limit`; NEVER without a limit."""
    if limit * PICOSECONDS >= NEVER:
        return NEVER
    # Rounding may have moved the product, and a timeline's seconds are rounded too.
    found = int(limit * PICOSECONDS)
    while (found + 1) / PICOSECONDS <= limit:
        found += 1
    while found / PICOSECONDS > limit:
        found -= 1
    return found


def _put(array: np.ndarray, begin: int, values: np.ndarray) -> np.ndarray:
    """The array with these values from `begin` on; a longer one where there is no room."""
    stop = begin + len(values)
    if stop > len(array):
        array = np.concatenate([array[:begin], np.zeros(2 * stop - begin, array.dtype)])
    array[begin:stop] = values
    return array


def _room(array: np.ndarray, size: int, value: int = 0) -> np.ndarray:
    """The array with so many entries at least."""
    if size <= len(array):
        return array
    return np.concatenate([array, np.full(2 * size - len(array), value, array.dtype)])


def _int32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)

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

from castile.planner import retime, solved
from castile.planner.simulate import latest
from castile.planner.solved import Patch, Rows, Solved
from castile.runtime.compiled import can_compile, compiled
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
        self._proposed: tuple[Change, int, int] | None = None
        self.num_timed = 0

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
    def size(self) -> int:
        """The numbers of all tasks lie below it; not each must be in use."""
        return len(self._solved.pos)

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
        patch = self._entered(change, removed)
        longest, num_out, num_skips, num_served, self._epoch = self._bodies.retime(
            most, self._epoch, self._engine, self._rows, self._solved, patch, self._work
        )
        patch.gone[removed] = False
        patch.row_of[patch.number] = -1
        patch.head[self._rows.needs[self._num_needs : self._num_needs + len(change.needs)]] = -1
        self._proposed, self.num_timed = None, int(num_out)
        if not 0 <= longest <= most:
            return None
        assert num_served == self.num_tasks - len(removed) + len(patch.number), "the changed task graph has a cycle"
        self._proposed = change, int(num_out), int(num_skips)
        return float(longest) / PICOSECONDS

    def accept(self) -> None:
        """Make the change that was proposed last, and not refused."""
        assert self._proposed is not None, "there is no proposal"
        change, num_out, num_skips = self._proposed
        old, work, bodies, number = self._solved, self._work, self._bodies, _int32(change.number)
        size = max(self.size, int(number.max(initial=-1)) + 1)
        row_seq, ready, end, high = bodies.joined(
            old.seq, old.ready, old.end, work.out_row[:num_out], work.out_ready, work.out_end, work.skips[:num_skips]
        )
        seq, rows, self._num_lanes, self._num_needs = bodies.renumbered(size, self.size, number, row_seq, self._rows)
        self._rows = Rows(*rows)
        pos, follow_lo, follow_hi, follows, num_roots = bodies.followed(size, self._num_needs, seq, self._rows)
        loads = bodies.loaded(self._num_engines, self._engine, seq, self._rows)
        self._solved = Solved(seq, pos, ready, end, high, follow_lo, follow_hi, follows, num_roots, loads)
        self._proposed = None

    def _entered(self, change: Change, removed: np.ndarray) -> Patch:
        """The tasks that come written behind those that are there, and what they need turned into rows."""
        number = _int32(change.number)
        num_rows = max(self.size, int(number.max(initial=-1)) + 1) + len(number)
        if num_rows > len(self._patch.gone):
            self._patch, self._work = solved.room(2 * num_rows, self._num_engines)
        lane_ptr, need_ptr = np.asarray(change.lane_ptr), np.asarray(change.need_ptr)
        size, lanes, needs = self.size, self._num_lanes, self._num_needs
        tail = (
            (size, change.order), (size, change.lasts), (size, lane_ptr[:-1] + lanes), (size, lane_ptr[1:] + lanes),
            (lanes, change.lanes), (size, need_ptr[:-1] + needs), (size, need_ptr[1:] + needs), (needs, change.needs),
        )  # fmt: skip
        self._rows = Rows(*(_put(array, *values) for array, values in zip(self._rows, tail, strict=True)))
        entries = np.empty(len(change.needs), np.int32), np.empty(len(change.needs), np.int32)
        changed = np.sort(self._solved.pos[removed])
        patch = Patch(size, changed, number, *self._patch[3:6], *entries)
        self._bodies.resolve(needs, removed, self._rows, self._solved, patch)
        return patch


class _Bodies(NamedTuple):
    """The functions that do the work."""

    resolve: Callable[..., Any]
    retime: Callable[..., Any]
    joined: Callable[..., Any]
    renumbered: Callable[..., Any]
    followed: Callable[..., Any]
    loaded: Callable[..., Any]


BODIES = _Bodies(solved.resolve, retime.retime, solved.joined, solved.renumbered, solved.followed, solved.loaded)


@cache
def _compiled_bodies() -> _Bodies:
    """The same compiled, where numba is installed."""
    if not can_compile():
        return BODIES
    import numba
    from numba.extending import register_jitable

    for part in retime.PARTS:
        register_jitable(part)
    # The loop makes no array. To count references to those that it is given would cost it eight times its own time.
    return _Bodies(*map(compiled, BODIES))._replace(retime=numba.njit(cache=True, _nrt=False)(retime.retime))


def _put(array: np.ndarray, begin: int, values: np.ndarray) -> np.ndarray:
    """The array with these values from `begin` on; a longer one where there is no room."""
    stop = begin + len(values)
    if stop > len(array):
        array = np.concatenate([array[:begin], np.zeros(2 * stop - begin, array.dtype)])
    array[begin:stop] = values
    return array


def _int32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)

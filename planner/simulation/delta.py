"""Delta simulation: a simulated task graph changes in places, and only the tasks that a change moves are timed again.

It does not know where changes come from, nor memory: the peak of a plan is what `simulate` computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, NamedTuple

import numpy as np

from castile.planner.simulation import agenda, delta_state, retime
from castile.planner.simulation.agenda import NEVER
from castile.planner.simulation.delta_state import KEPT, Baseline, Patch, TaskTable
from castile.runtime.compiled import compiled
from castile.runtime.task import NUM_LANES, TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

FORMS = ("auto", "plain")


@dataclass(frozen=True, eq=False)
class Change:
    """A change of a task graph: R tasks are removed and C added; a modified task is removed and added.

    Tasks have numbers, which they keep from change to change. A kept task needs the same numbers as before: a task that
    needs a removed number must be removed too.

    removed[R]              numbers of the removed tasks
    added[C]                numbers of the added tasks: of removed tasks, or unused ones
    order[C], duration[C]   the key by which engines break ties, unique in the graph; picoseconds, at least 1
    lane_ptr[C+1], lanes    the lanes that each occupies, as in a TaskGraph
    need_ptr[C+1], needs    the numbers of the tasks that each needs (unique), added or kept
    """

    removed: np.ndarray
    added: np.ndarray
    order: np.ndarray
    duration: np.ndarray
    lane_ptr: np.ndarray
    lanes: np.ndarray
    need_ptr: np.ndarray
    needs: np.ndarray


class Delta:
    """A simulated task graph that can be changed.

    `propose` times the step after a change; `accept` makes the change last proposed. A proposal that is not accepted
    leaves nothing behind. Times equal those of `simulate`, to the picosecond, ties included.

    A step is the sequence of its tasks as they are served, by (ready time, order). A change leaves stretches of it
    unchanged but for a shift in time, one for each stretch. Tasks are served one by one from where a change first shows
    until the state equals that of the baseline, but for a shift; the rest up to the next change is skipped. Timing only
    what moves is the idea of FlexFlow's delta simulation (Jia, Zaharia, Aiken, MLSys 2019, algorithm 2), which visits
    each task that moves.

    size        all task numbers lie below it; not each must be in use
    num_timed   the number of tasks that the last proposal served one by one
    """

    def __init__(self, num_procs: int, engines: Sequence[int], form: str = "auto") -> None:
        """A graph without tasks. Raises ValueError for an unknown form.

        engines   by lane the engine of its processor that serves it (`Machine.engines`)
        form      "plain" interprets the loops, "auto" compiles them where numba is installed
        """
        if form not in FORMS:
            raise ValueError(f"delta form {form!r} is unknown; choose one of {', '.join(FORMS)}")
        assert len(engines) == NUM_LANES
        places = np.arange(num_procs)[:, None] * (max(engines) + 1) + np.asarray(engines)
        self._engine = np.ascontiguousarray(places.ravel(), np.int32)
        self._num_engines = int(self._engine.max(initial=-1)) + 1
        self._bodies = BODIES if form == "plain" else _compiled_bodies()
        self._table, self._baseline = delta_state.empty_schedule(self._num_engines)
        self._num_lanes, self._num_needs, self._epoch = 0, 0, 0
        self._patch, self._scratch = delta_state.new_scratch(0, self._num_engines)
        self._agenda = agenda.room(0)
        self._proposed: tuple[np.ndarray, TaskTable, int, int] | None = None
        self.size = self.num_timed = 0

    @classmethod
    def of(cls, graph: TaskGraph, durations: np.ndarray, engines: Sequence[int], form: str = "auto") -> Delta:
        """The simulation of a graph, whose task numbers are indices. durations[c] are the picoseconds of cost key c."""
        delta = cls(graph.num_procs, engines, form)
        duration = np.maximum(np.asarray(durations, np.int64)[graph.cost], 1)
        pointers = graph.lane_ptr, graph.lanes, graph.need_ptr, graph.needs
        delta.propose(Change(np.zeros(0, np.int64), np.arange(graph.num_tasks), graph.order, duration, *pointers))
        delta.accept()
        return delta

    @property
    def num_tasks(self) -> int:
        return len(self._baseline.seq)

    @property
    def seconds(self) -> float:
        """The seconds of the step."""
        return float(self._baseline.high[-1]) / PICOSECONDS if self.num_tasks else 0.0

    @property
    def timeline(self) -> Timeline:
        """When each task runs, ordered by number."""
        return self.spans(np.sort(self._baseline.seq).astype(np.int64))

    def spans(self, numbers: np.ndarray) -> Timeline:
        """When the tasks of these numbers run."""
        end = self._baseline.end[self._baseline.pos[numbers]]
        return Timeline(numbers, end - self._table.duration[numbers], end)

    def propose(self, change: Change, limit: float = inf) -> float | None:
        """Seconds of the step after the change; None if they exceed `limit`."""
        removed, most = _int32(change.removed), max_picoseconds(limit)
        rows, patch = self._prepare(change, removed)
        bodies, table, baseline = self._bodies, self._table, self._baseline
        bodies.apply_change(self._num_needs, removed, rows, self._engine, table, baseline, patch, self._scratch)
        # A bucket for every two tasks, if the step lasts as long as before.
        width = int(max(baseline.high[-1:], default=0)) // len(self._agenda.first)
        longest, num_out, num_skips, num_served, self._epoch = bodies.retime(
            most, self._epoch, width.bit_length(), self._engine, table, baseline, patch, self._agenda, self._scratch
        )
        bodies.swap_rows(patch.added, rows, table)
        patch.fate[removed] = patch.fate[patch.added] = KEPT
        patch.first_link[table.needs[self._num_needs : self._num_needs + len(change.needs)]] = -1
        self._proposed, self.num_timed = None, int(num_out)
        if not 0 <= longest <= most:
            return None
        assert num_served == self.num_tasks - len(removed) + len(patch.added), "the changed task graph has a cycle"
        self._proposed = patch.added, rows, int(num_out), int(num_skips)
        return float(longest) / PICOSECONDS

    def accept(self) -> None:
        """Make the change last proposed, which must not have exceeded its limit."""
        assert self._proposed is not None, "there is no proposal"
        added, rows, num_out, num_skips = self._proposed
        old, scratch, bodies = self._baseline, self._scratch, self._bodies
        self.size = max(self.size, int(added.max(initial=-1)) + 1)
        bodies.swap_rows(added, rows, self._table)
        seq, ready, end, high = bodies.merge_sequences(
            old.seq, old.ready, old.end, scratch.out[:num_out], scratch.ready, scratch.done, scratch.skips[:num_skips]
        )
        packed, self._num_lanes, self._num_needs = bodies.pack_table(self.size, seq, self._table)
        self._table = table = TaskTable(*packed)
        followers = bodies.index_followers(self.size, self._num_needs, seq, table)
        pos, follow_lo, follow_hi, follows, num_roots = followers
        loads = bodies.cumulative_loads(self._num_engines, self._engine, seq, table)
        self._baseline = Baseline(seq, pos, ready, end, high, follow_lo, follow_hi, follows, num_roots, loads)
        self._proposed = None

    def _prepare(self, change: Change, removed: np.ndarray) -> tuple[TaskTable, Patch]:
        """Grow all arrays to the change's numbers; returns the rows of the added tasks, and the change as a patch."""
        added = _int32(change.added)
        size, lanes, needs = max(self.size, int(added.max(initial=-1)) + 1), self._num_lanes, self._num_needs
        if size > len(self._patch.fate):
            self._patch, self._scratch = delta_state.new_scratch(2 * size, self._num_engines)
            self._agenda = agenda.room(2 * size)
        old = self._table
        self._table = TaskTable(
            _grown(old.order, size), _grown(old.duration, size), _grown(old.lane_lo, size), _grown(old.lane_hi, size),
            _written(old.lanes, lanes, change.lanes), _grown(old.need_lo, size), _grown(old.need_hi, size),
            _written(old.needs, needs, change.needs),
        )  # fmt: skip
        known = self._baseline
        self._baseline = known._replace(
            pos=_grown(known.pos, size, -1), follow_lo=_grown(known.follow_lo, size),
            follow_hi=_grown(known.follow_hi, size),
        )  # fmt: skip
        lane_ptr, need_ptr = _int32(change.lane_ptr) + np.int32(lanes), _int32(change.need_ptr) + np.int32(needs)
        rows = TaskTable(
            np.array(change.order, np.int64), np.array(change.duration, np.int64), lane_ptr[:-1].copy(), lane_ptr[1:],
            self._table.lanes, need_ptr[:-1].copy(), need_ptr[1:], self._table.needs,
        )  # fmt: skip
        links = np.empty((2, len(change.needs)), np.int32)
        positions = np.sort(self._baseline.pos[removed])
        return rows, Patch(positions, added, self._patch.fate, self._patch.first_link, *links)


class _Bodies(NamedTuple):
    """The loops of the simulation."""

    apply_change: Callable[..., Any]
    swap_rows: Callable[..., Any]
    retime: Callable[..., Any]
    merge_sequences: Callable[..., Any]
    pack_table: Callable[..., Any]
    index_followers: Callable[..., Any]
    cumulative_loads: Callable[..., Any]


BODIES = _Bodies(
    delta_state.apply_change, delta_state.swap_rows, retime.retime, delta_state.merge_sequences,
    delta_state.pack_table, delta_state.index_followers, delta_state.cumulative_loads,
)  # fmt: skip


@cache
def _compiled_bodies() -> _Bodies:
    """The loops, compiled where numba is installed."""
    alone = agenda.without_arrays(BODIES[:3], (*retime.PARTS, delta_state.add_load, delta_state.swap_rows))
    return _Bodies(*alone, *map(compiled, BODIES[3:]))


def max_picoseconds(limit: float) -> int:
    """The most picoseconds of a step whose seconds do not exceed `limit`; NEVER without a limit."""
    if limit * PICOSECONDS >= NEVER:
        return NEVER
    # Rounding may have moved the product, and a timeline's seconds are rounded too.
    found = int(limit * PICOSECONDS)
    while (found + 1) / PICOSECONDS <= limit:
        found += 1
    while found / PICOSECONDS > limit:
        found -= 1
    return found


def _written(array: np.ndarray, begin: int, values: np.ndarray) -> np.ndarray:
    """The array with values written from index `begin` on; a larger copy where it is too short."""
    stop = begin + len(values)
    if stop > len(array):
        array = np.concatenate([array[:begin], np.zeros(2 * stop - begin, array.dtype)])
    array[begin:stop] = values
    return array


def _grown(array: np.ndarray, size: int, value: int = 0) -> np.ndarray:
    """The array, filled up with `value` to at least `size` entries."""
    if size <= len(array):
        return array
    return np.concatenate([array, np.full(2 * size - len(array), value, array.dtype)])


def _int32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)

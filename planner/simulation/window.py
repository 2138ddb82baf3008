"""Simulation in a window: a step of many microbatches, simulated with the tasks of a few, which stand for all in turn.

When the last of the equal ("alike") microbatches would begin, the first of them are done. Then the others are moved to
the places of these, with all their times, and the places at the end are free for the next microbatches. So the whole
step is simulated, with the tasks of only a few microbatches in memory. It does not know how plans are lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from castile.planner.simulate import Simulated, flatten, num_engines, simulation_of
from castile.planner.simulation import serving
from castile.planner.simulation.agenda import NEVER
from castile.planner.simulation.serving import STOP, Remaining, Schedule, Tasks
from castile.runtime.compiled import compiled
from castile.runtime.task import NUM_LANES, TaskGraph
from castile.runtime.timeline import Timeline

# What a task belongs to: no microbatch, one before the alike ones, one of these, the last one; or none, but it waits
# for alike ones.
NONE, FIRST, ALIKE, LAST, ALL = range(5)

Serve = Callable[[Tasks, Schedule, Remaining], int]


class Stretch(NamedTuple):
    """The simulation of T tasks on E engines between two moves of the window: all tasks that begin by `until` are
    served.

    until                         a time in picoseconds; for the last stretch the end of the step
    start, end                    int64[T]; the end is NEVER for tasks that are not served yet
    queue, queue_ptr, queue_end   the tasks of each engine in the order in which they were served, and where in the
                                  queue they begin and end
    peak_bytes                    int64[P], the most bytes alive at one time so far
    later                         the shift: alike microbatch k stands for number k + later
    by                            how much larger the shift is than in the stretch before
    """

    until: int
    start: np.ndarray
    end: np.ndarray
    queue: np.ndarray
    queue_ptr: np.ndarray
    queue_end: np.ndarray
    peak_bytes: np.ndarray
    later: int = 0
    by: int = 0


Watch = Callable[[Stretch], None]


class Alike(NamedTuple):
    """Which of T tasks belong to equal microbatches, of which one may stand for another.

    part    int8[T], NONE, FIRST, ALIKE, LAST or ALL
    copy    int32[T], the number of the task's microbatch among the alike ones, from 0
    length  int32[T], the distance to the same task of the next alike microbatch, 0 for other tasks
    number  the number of alike microbatches
    reach   the most microbatches between a task and one for which it waits in turn; other needs reach 0 or 1
    """

    part: np.ndarray
    copy: np.ndarray
    length: np.ndarray
    number: int
    reach: int

    @property
    def is_last(self) -> np.ndarray:
        """bool[T]: which tasks belong to the last of the alike microbatches."""
        return (self.part == ALIKE) & (self.copy == self.number - 1)

    def times(self, more: int) -> np.ndarray:
        """int64[T]: how many tasks each stands for, if the last alike microbatch also stands for `more` others."""
        return 1 + more * self.is_last.astype(np.int64)


def simulate_window(
    tasks: TaskGraph, durations: np.ndarray, engines: Sequence[int], alike: Alike, more: int, serve: Serve,
    watch: Watch | None = None,
) -> Simulated | None:  # fmt: skip
    """Simulate a step with `more` further alike microbatches.

    Returns the times of the first and last microbatches, as many as are written out, and the memory peaks of the whole
    step; None where the window is too small to move.

    serve   as `serving.serve_ready`
    watch   called with each stretch in turn; it must not keep their arrays
    """
    flat = flatten(tasks, durations, engines)
    served = serving.new_schedule(flat, num_engines(tasks, engines), serving.compiled_bodies()[0])
    served.end.fill(NEVER)
    served.place.fill(len(flat.lanes))
    # Serving stops where the last alike microbatch would begin: tasks after it would compete with those of microbatches
    # that are not written out.
    short = flat._replace(order=np.where((alike.part > ALIKE) | alike.is_last, STOP, flat.order))
    left, peak = serving.nothing_served(flat, served), np.zeros(tasks.num_procs, np.int64)
    stretch = Stretch(0, served.start, served.end, served.queue, served.queue_ptr[:-1], left.queue_end, peak)
    while stretch.later < more:
        until = serve(short, served, left)
        # The peak before `until` only: tasks served ahead begin when some memory that is alive now may be free.
        np.maximum(peak, simulation_of(tasks, served, until=until).peak_bytes, out=peak)
        if watch is not None:
            watch(stretch._replace(until=until))
        past = compiled(_past)(*alike[:4], served.end, until)
        by = min(past, alike.number - alike.reach, more - stretch.later)
        if by <= 0:
            return None
        left, stretch = left._replace(base=until), stretch._replace(later=stretch.later + by, by=by)
        compiled(_moved)(
            by, *alike[:4], flat.need_ptr, flat.needs, flat.lane_ptr, flat.lanes, flat.engine, served.start,
            served.end, left.waits, served.queue, served.queue_ptr, left.queue_end, served.place,
        )  # fmt: skip
    serve(flat, served, left)
    found = simulation_of(tasks, served)
    np.maximum(peak, found.peak_bytes, out=peak)
    if watch is not None:
        watch(stretch._replace(until=int(served.end.max(initial=0))))
    return replace(found, peak_bytes=peak)


def whole(tasks: TaskGraph, timeline: Timeline, engines: Sequence[int]) -> Stretch:
    """The only stretch of a step whose microbatches are all written out."""
    owner = np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.lane_ptr))
    proc, lane = np.divmod(tasks.lanes, NUM_LANES)
    engine = proc * (max(engines) + 1) + np.asarray(engines)[lane]
    queue = owner[np.lexsort((timeline.start[owner], engine))].astype(np.uint32)
    ends = np.cumsum(np.bincount(engine, minlength=num_engines(tasks, engines)), dtype=np.int32)
    begins = np.append(np.zeros(1, np.int32), ends[:-1])
    peak = np.zeros(tasks.num_procs, np.int64)
    return Stretch(int(timeline.end.max(initial=0)), timeline.start, timeline.end, queue, begins, ends, peak)


def _past(part, copy, length, number, end, until):  # type: ignore[no-untyped-def]
    """How many alike microbatches, and all before them, end before `until`, so that nothing that begins later waits for
    them; 0 if a task of one ends no sooner than the same task of the next one.
    """
    past = number
    for t in range(len(end)):
        if part[t] == FIRST and end[t] >= until:
            return 0
        if part[t] == ALIKE:
            if end[t] >= until:
                past = min(past, copy[t])
            if copy[t] + 1 < number and end[t + length[t]] < NEVER and end[t + length[t]] <= end[t]:
                return 0
    return past


def _moved(  # type: ignore[no-untyped-def]
    by, part, copy, length, number, need_ptr, needs, lane_ptr, lanes, engine, start, end, waits, queue, queue_ptr,
    queue_end, place,
):  # fmt: skip
    """Move each alike microbatch to the place of the one `by` before it: its tasks' times, the numbers of tasks they
    wait for, and their positions in the engines' queues. The last places are then free for further microbatches.
    """
    for t in range(len(part)):
        if part[t] == ALIKE and copy[t] + by < number:
            start[t], end[t] = start[t + by * length[t]], end[t + by * length[t]]
        elif part[t] == ALIKE or part[t] == LAST:
            start[t], end[t] = -1, NEVER
    for t in range(len(part)):
        # The ready time of a moved task is known; the tasks that it needs may stand for later ones by now.
        waits[t], is_next = -1 if end[t] < NEVER else 0, start[t] < 0
        for k in range(need_ptr[t], need_ptr[t + 1] if end[t] == NEVER else 0):
            if end[needs[k]] == NEVER:
                waits[t] += 1
            elif is_next:
                start[t] = max(start[t], end[needs[k]])
        start[t] = max(start[t], 0)
    place[:] = len(place)
    for e in range(len(queue_end)):
        size = queue_ptr[e]
        for k in range(queue_ptr[e], queue_end[e]):
            task = np.int64(queue[k])
            if part[task] == ALIKE:
                if copy[task] < by:
                    continue
                task -= by * length[task]
            queue[size] = task
            for slot in range(lane_ptr[task], lane_ptr[task + 1]):
                if engine[lanes[slot]] == e and place[slot] == len(place):
                    place[slot] = size
                    break
            size += 1
        queue_end[e] = size

"""Simulation in a window: a step of many microbatches, simulated with the tasks of a few, which stand for others in
turn.

When the last of the alike microbatches would begin, the first of them are done. Then the others are moved to the places
of these, with all their times, and the places at the end are free for the microbatches that come next. So the whole
step is simulated, and only a few microbatches of it are held. It does not know how plans are lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from castile.planner.simulate import Simulated, flattened, served_by, simulated_as
from castile.planner.simulation import serving
from castile.planner.simulation.agenda import NEVER
from castile.planner.simulation.serving import STOP, Left, Served, Tasks
from castile.runtime.compiled import compiled
from castile.runtime.task import NUM_LANES, TaskGraph
from castile.runtime.timeline import Timeline

# To what a task belongs: to no microbatch, to one before the alike ones, to one of these, to the last one; or to none,
# but it waits for alike ones.
NONE, FIRST, ALIKE, LAST, ALL = range(5)

Serve = Callable[[Tasks, Served, Left], int]


class Stretch(NamedTuple):
    """The state of the simulation of T tasks on E engines at a time before which all that begins by then is served.

    until                         that time, in picoseconds; for the last stretch the end of the step
    start, end                    int64[T]; the end is NEVER for tasks that are not served yet
    queue, queue_ptr, queue_end   the tasks of each engine in the order in which they were served, and where in the
                                  queue they begin and end
    peak_bytes                    int64[P], the most bytes alive at one time so far
    later                         by how many microbatches alike ones stand for later ones than they were written as
    by                            the same, relative to the stretch before
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
    """Which of T tasks belong to microbatches that are alike.

    part    int8[T], NONE, FIRST, ALIKE, LAST or ALL
    copy    int32[T], the number of the task's microbatch among the alike ones, from 0
    length  int32[T], the distance to the same task of the next alike microbatch, 0 for tasks of others
    number  how many microbatches are alike
    reach   how many microbatches a task is at most behind one for which it waits in turn; other needs reach 0 or 1
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
        """int64[T]: how many tasks each stands for, if the last alike microbatch stands for `more` others as well."""
        return 1 + more * self.is_last.astype(np.int64)


def simulated(
    tasks: TaskGraph, durations: np.ndarray, engines: Sequence[int], alike: Alike, more: int, serve: Serve,
    watch: Watch | None = None,
) -> Simulated | None:  # fmt: skip
    """Simulate a step with `more` further alike microbatches: the times of the first and last microbatches, as many as
    are written out, and the peaks of memory of the whole step. None where the window is too small to move.

    serve   as `serving.serve_ready`
    watch   called with each stretch in turn; it must not keep their arrays
    """
    flat = flattened(tasks, durations, engines)
    served = serving.to_serve(flat, served_by(tasks, engines), serving.compiled_bodies()[0])
    served.end.fill(NEVER)
    served.place.fill(len(flat.lanes))
    # Tasks that would compete with those of microbatches not written out are not served: before them the last alike
    # microbatch would have to begin, and serving stops there.
    short = flat._replace(order=np.where((alike.part > ALIKE) | alike.is_last, STOP, flat.order))
    left, peak = serving.all_left(flat, served), np.zeros(tasks.num_procs, np.int64)
    stretch = Stretch(0, served.start, served.end, served.queue, served.queue_ptr[:-1], left.queue_end, peak)
    while stretch.later < more:
        until = serve(short, served, left)
        # Only up to this time: tasks that were served ahead begin when some of what is alive now may be gone.
        np.maximum(peak, simulated_as(tasks, served, until=until).peak_bytes, out=peak)
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
    found = simulated_as(tasks, served)
    np.maximum(peak, found.peak_bytes, out=peak)
    if watch is not None:
        watch(stretch._replace(until=int(served.end.max(initial=0))))
    return replace(found, peak_bytes=peak)


def whole(tasks: TaskGraph, timeline: Timeline, engines: Sequence[int]) -> Stretch:
    """A step whose microbatches are all written out, as one stretch."""
    owner = np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.lane_ptr))
    proc, lane = np.divmod(tasks.lanes, NUM_LANES)
    engine = proc * (max(engines) + 1) + np.asarray(engines)[lane]
    queue = owner[np.lexsort((timeline.start[owner], engine))].astype(np.uint32)
    ends = np.cumsum(np.bincount(engine, minlength=served_by(tasks, engines)), dtype=np.int32)
    begins = np.append(np.zeros(1, np.int32), ends[:-1])
    peak = np.zeros(tasks.num_procs, np.int64)
    return Stretch(int(timeline.end.max(initial=0)), timeline.start, timeline.end, queue, begins, ends, peak)


def _past(part, copy, length, number, end, until):  # type: ignore[no-untyped-def]
    """How many of the alike microbatches, and all before them, end before a time, so that nothing that begins later
    waits for them; 0 if a task of one ends no sooner than the same task of the next one.
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
    """Move each alike microbatch to the place of the one `by` before it: its tasks' times, the counts of what they wait
    for, and their places in the engines' queues. The last places are then free for microbatches that follow.
    """
    for t in range(len(part)):
        if part[t] == ALIKE and copy[t] + by < number:
            start[t], end[t] = start[t + by * length[t]], end[t + by * length[t]]
        elif part[t] == ALIKE or part[t] == LAST:
            start[t], end[t] = -1, NEVER
    for t in range(len(part)):
        # Of a task that was moved it is known when it is ready: those before it may stand for later ones by now.
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

"""Window: a step of many microbatches, simulated through the tasks of a few of them, which stand for others in turn.

Before the last of those that are alike would begin, the first of them are done. So the others are put in their places,
with all that has come to pass of them, and those behind them stand for what comes next. What is simulated is the whole
step, and what is kept is a few microbatches of it. It does not know how plans are lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from castile.planner.simulate import Simulated, flattened, served_by, told
from castile.planner.simulation import serving
from castile.planner.simulation.agenda import NEVER
from castile.planner.simulation.serving import STOP, Left, Served, Tasks
from castile.runtime.compiled import compiled
from castile.runtime.task import NUM_LANES, TaskGraph
from castile.runtime.timeline import Timeline

# What a task is of: of no microbatch, of one before those that are alike, of one of these, of the last one; or of none,
# and waits for those that are alike.
NONE, FIRST, ALIKE, LAST, ALL = range(5)

Serve = Callable[[Tasks, Served, Left], int]


class Stretch(NamedTuple):
    """What has come to pass of a step of T tasks on E engines: all that begins before some time.

    until                         that time, picoseconds; at last, when all is done
    start, end                    int64[T], NEVER ends what is not served
    queue, queue_ptr, queue_end   the tasks of each engine as they were served, from where on, and up to where
    peak_bytes                    int64[P], the most that lived at one time until then
    later                         how many microbatches later than it is written out what is alike stands
    by                            and how many than in the stretch before
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
    """Which of T tasks are of microbatches that are alike.

    part    int8[T], what each is of
    copy    int32[T], of which of those that are alike, from 0 on
    length  int32[T], how far behind each the same of the next one stands, 0 of all others
    number  how many are alike
    reach   how many microbatches what waits in turn is behind what it waits for, at most; else it is none or one
    """

    part: np.ndarray
    copy: np.ndarray
    length: np.ndarray
    number: int
    reach: int

    @property
    def is_last(self) -> np.ndarray:
        """Whether it is of the last microbatch that is alike."""
        return (self.part == ALIKE) & (self.copy == self.number - 1)

    def times(self, more: int) -> np.ndarray:
        """int64[T]: for how many each task stands where so many more are alike, all of them like the last one."""
        return 1 + more * self.is_last.astype(np.int64)


def simulated(
    tasks: TaskGraph, durations: np.ndarray, engines: Sequence[int], alike: Alike, more: int, serve: Serve,
    watch: Watch | None = None,
) -> Simulated | None:  # fmt: skip
    """A step with so many more microbatches that are alike: when the first, and when the last of those that are written
    out are served, and the most that lives in the whole step. None where it is not seen that this is so.

    serve   as `serving.serve_ready`
    watch   is shown one stretch after the other, and keeps none of its arrays
    """
    flat = flattened(tasks, durations, engines)
    served = serving.to_serve(flat, served_by(tasks, engines), serving.compiled_bodies()[0])
    served.end.fill(NEVER)
    served.place.fill(len(flat.lanes))
    # What others would compete with that are not written out is not served: the last one that is alike begins first.
    short = flat._replace(order=np.where((alike.part > ALIKE) | alike.is_last, STOP, flat.order))
    left, peak = serving.all_left(flat, served), np.zeros(tasks.num_procs, np.int64)
    stretch = Stretch(0, served.start, served.end, served.queue, served.queue_ptr[:-1], left.queue_end, peak)
    while stretch.later < more:
        until = serve(short, served, left)
        # What lives now may have gone before something begins that was served ahead.
        np.maximum(peak, told(tasks, served, until=until).peak_bytes, out=peak)
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
    found = told(tasks, served)
    np.maximum(peak, found.peak_bytes, out=peak)
    if watch is not None:
        watch(stretch._replace(until=int(served.end.max(initial=0))))
    return replace(found, peak_bytes=peak)


def whole(tasks: TaskGraph, timeline: Timeline, engines: Sequence[int]) -> Stretch:
    """A step that is written out whole as one stretch."""
    owner = np.repeat(np.arange(tasks.num_tasks), np.diff(tasks.lane_ptr))
    proc, lane = np.divmod(tasks.lanes, NUM_LANES)
    engine = proc * (max(engines) + 1) + np.asarray(engines)[lane]
    queue = owner[np.lexsort((timeline.start[owner], engine))].astype(np.uint32)
    ends = np.cumsum(np.bincount(engine, minlength=served_by(tasks, engines)), dtype=np.int32)
    begins = np.append(np.zeros(1, np.int32), ends[:-1])
    peak = np.zeros(tasks.num_procs, np.int64)
    return Stretch(int(timeline.end.max(initial=0)), timeline.start, timeline.end, queue, begins, ends, peak)


def _past(part, copy, length, number, end, until):  # type: ignore[no-untyped-def]
    """How many of those that are alike are done before a time, with all before them, so that nothing begins later with
    the end of any of these; 0 where one of them is done with something no sooner than the next one.
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
    """Puts each of those that are alike where the one stands that is so many before, and what comes behind them in
    their places: when they run, for how many they wait, and where they stand in the engines' queues.
    """
    for t in range(len(part)):
        if part[t] == ALIKE and copy[t] + by < number:
            start[t], end[t] = start[t + by * length[t]], end[t + by * length[t]]
        elif part[t] == ALIKE or part[t] == LAST:
            start[t], end[t] = -1, NEVER
    for t in range(len(part)):
        # Of those before it stands what was once, so of what was put in their places it is known already.
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

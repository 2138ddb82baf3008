"""Simulation: when each task of a graph would run, and the peak memory of each processor.

It does not know where durations come from, nor what the tasks do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from castile.planner.simulation import serving
from castile.planner.simulation.agenda import NEVER
from castile.planner.simulation.serving import Schedule, Tasks
from castile.runtime.compiled import can_compile, compiled
from castile.runtime.task import NUM_LANES, Lane, TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

FORMS = ("auto", "numba", "plain")
# The most picoseconds of all tasks of a step together: times of the simulation stay below 2^63.
LONGEST = 2**62
COMPUTE = int(Lane.COMPUTE)


@dataclass(frozen=True, eq=False)
class Simulated:
    """The result of simulating a graph of T tasks on P processors.

    timeline              start and end of every task, in picoseconds
    persistent_bytes[P]   bytes of the buffers that live through the step
    peak_bytes[P]         these, plus the most bytes of transient buffers and private memory alive at one time
    busy_seconds[P]       seconds that each processor's compute lane works
    """

    timeline: Timeline
    persistent_bytes: np.ndarray
    peak_bytes: np.ndarray
    busy_seconds: np.ndarray

    @property
    def seconds(self) -> float:
        """The seconds of the step."""
        return self.timeline.seconds

    @property
    def num_tasks(self) -> int:
        """The number of tasks simulated."""
        return len(self.timeline.task)


def simulate(graph: TaskGraph, durations: np.ndarray, engines: Sequence[int], form: str = "auto") -> Simulated:
    """Simulate one step of a graph, exactly, in integers.

    durations   int64[C], picoseconds by cost key; a task takes at least 1
    engines     by lane the engine of its processor that serves it (`Machine.engines`)
    form        "numba" compiles the body, "plain" interprets it, "auto" compiles it where numba is installed

    A task is ready when all tasks that it needs have ended. Tasks are served by (ready time, order); each begins at the
    latest of its ready time and the ends of the tasks before it on its engines. This is the full simulation of FlexFlow
    (Jia, Zaharia, Aiken, MLSys 2019, algorithm 1), with tasks that occupy several engines.

    A transient buffer lives from the start of its first task to the last end of a task that uses it, private memory as
    long as its task. At equal times memory is freed before it is allocated. Every task runs on the processors of the
    buffers that it uses.

    Raises ValueError for an unknown form, for "numba" where it is missing, and where all tasks together take longer
    than LONGEST.
    """
    if form not in FORMS:
        raise ValueError(f"simulator form {form!r} is unknown; choose one of {', '.join(FORMS)}")
    if form == "numba" and not can_compile():
        raise ValueError("simulator form 'numba' needs numba, which is not installed; choose 'auto' or 'plain'")
    assert len(durations) == len(graph.cost_keys) and len(engines) == NUM_LANES
    follow = serving.follow if form == "plain" else serving.compiled_bodies()[0]
    tasks = flatten(graph, durations, engines)
    served = serving.new_schedule(tasks, num_engines(graph, engines), follow)
    left = serving.nothing_served(tasks, served)
    serving.serve_ready(tasks, served, left, form)
    assert (left.queue_end == served.queue_ptr[1:]).all(), "the task graph has a cycle"
    return simulation_of(graph, served, form)


def simulation_of(graph: TaskGraph, served: Schedule, form: str = "auto", until: int = NEVER) -> Simulated:
    """The simulation of a graph whose tasks were served so.

    until   peak memory is that before this time, in picoseconds
    """
    book, sweep = BODIES if form == "plain" else map(compiled, BODIES)
    persistent, delta = book(
        served.end, _unsigned(graph.lane_ptr), _unsigned(graph.lanes), served.place, _unsigned(graph.use_ptr),
        _unsigned(graph.uses), graph.num_procs, _unsigned(graph.buffer_proc), _int64(graph.buffer_bytes),
        graph.buffer_first, _int64(graph.private_bytes),
    )  # fmt: skip
    peak = sweep(persistent, served.queue_ptr, served.queue, delta, served.start, served.end, until)
    timeline, busy = Timeline(np.arange(graph.num_tasks), served.start, served.end), served.busy[COMPUTE::NUM_LANES]
    return Simulated(timeline, persistent, peak, busy / PICOSECONDS)


def num_engines(graph: TaskGraph, engines: Sequence[int]) -> int:
    """The number of engines of all processors together."""
    return graph.num_procs * (max(engines) + 1)


def _check_length(graph: TaskGraph, durations: np.ndarray) -> None:
    most = int(durations.max(initial=0)) * graph.num_tasks
    if most >= LONGEST and (total := float(durations[graph.cost].sum(dtype=np.float64))) >= LONGEST:
        raise ValueError(
            f"the tasks of a step would take {total / PICOSECONDS:.3g} s in all, and what takes more than "
            f"{LONGEST / PICOSECONDS:.3g} s is not simulated: take a smaller batch, or look at the machine's figures, "
            "which are of a second"
        )


def flatten(graph: TaskGraph, durations: np.ndarray, engines: Sequence[int]) -> Tasks:
    """The graph in flat arrays, without followers, which `serving.follow` finds. Raises ValueError where all tasks
    together take longer than LONGEST.
    """
    _check_length(graph, durations)
    engine = np.arange(graph.num_procs)[:, None] * (max(engines) + 1) + np.asarray(engines)
    return Tasks(
        _int64(graph.order), _unsigned(graph.cost), _int64(durations), _unsigned(graph.lane_ptr),
        _unsigned(graph.lanes), engine.ravel().astype(np.uint32), _unsigned(graph.need_ptr), _unsigned(graph.needs),
        np.zeros(graph.num_tasks + 2, np.uint32), np.empty(len(graph.needs), np.uint32),
    )  # fmt: skip


def _unsigned(values: np.ndarray) -> np.ndarray:
    """Numbers that are never negative: compiled code indexes faster with these, as none counts from an array's end."""
    return values.view(np.uint32)


def _int64(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int64)


def _book(  # type: ignore[no-untyped-def]
    end, lane_ptr, lanes, place, use_ptr, uses, num_procs, buffer_proc, buffer_bytes, buffer_first, private_bytes
):
    """(persistent bytes by processor, delta): the task at position i of the engines' queues allocates delta[2 * i]
    bytes and frees -delta[2 * i + 1], booked on its first slot of that processor.
    """
    persistent, delta = np.zeros(num_procs, np.int64), np.zeros(2 * len(lanes) + 2, np.int64)
    last = np.full(len(buffer_proc), -1, np.int32)
    for t in range(len(end)):
        done = end[t]
        for u in range(use_ptr[t], use_ptr[t + 1]):
            b = uses[u]
            if last[b] < 0 or done > end[last[b]]:
                last[b] = t
        if private_bytes[t] == 0:
            continue
        for k in range(lane_ptr[t], lane_ptr[t + 1]):
            first = lane_ptr[t]
            while lanes[first] // NUM_LANES != lanes[k] // NUM_LANES:
                first += 1
            if first == k:
                delta[2 * place[k]] += private_bytes[t]
                delta[2 * place[k] + 1] -= private_bytes[t]
    for b in range(len(buffer_proc)):
        if buffer_first[b] < 0:
            persistent[buffer_proc[b]] += buffer_bytes[b]
            continue
        low = np.int64(buffer_proc[b]) * NUM_LANES
        begin, finish = lane_ptr[buffer_first[b]], lane_ptr[last[b]]
        while not 0 <= lanes[begin] - low < NUM_LANES:
            begin += 1
        while not 0 <= lanes[finish] - low < NUM_LANES:
            finish += 1
        assert begin < lane_ptr[buffer_first[b] + 1] and finish < lane_ptr[last[b] + 1]
        delta[2 * place[begin]] += buffer_bytes[b]
        delta[2 * place[finish] + 1] -= buffer_bytes[b]
    return persistent, delta


def _sweep(persistent, queue_ptr, queue, delta, start, end, until):  # type: ignore[no-untyped-def]
    """The peak bytes before `until` on every processor, by merging its engines' queues.

    On an engine starts and ends ascend, and no task starts before the previous one ends.
    """
    peak = persistent.copy()
    num_engines = (len(queue_ptr) - 1) // len(peak)
    head, tail = np.empty(num_engines, np.int64), np.empty(num_engines, np.int64)
    soon = np.empty(num_engines, np.int64)
    for p in range(len(peak)):
        live, num_open = persistent[p], 0
        for e in range(p * num_engines, (p + 1) * num_engines):
            begin, last = 2 * queue_ptr[e], 2 * queue_ptr[e + 1] - 1
            # Positions that allocate and free nothing need not be in order.
            while last >= begin and (delta[last] == 0 or (end if last & 1 else start)[queue[last >> 1]] >= until):
                last -= 1
            head[num_open], tail[num_open], soon[num_open] = begin - 1, last + 1, -1
            num_open += 1
        while num_open > 0:
            q = 0
            for e in range(1, num_open):
                if soon[e] < soon[q]:
                    q = e
            h = head[q]
            if soon[q] >= 0:
                live += delta[h]
                peak[p] = max(peak[p], live)
            h += 1
            while h < tail[q] and delta[h] == 0:
                h += 1
            if h < tail[q]:
                # Twice the time, odd for a beginning: at equal times ends come first.
                head[q], soon[q] = h, 2 * end[queue[h >> 1]] if h & 1 else 2 * start[queue[h >> 1]] + 1
            else:
                num_open -= 1
                head[q], tail[q], soon[q] = head[num_open], tail[num_open], soon[num_open]
    return peak


BODIES: tuple[Callable[..., Any], ...] = (_book, _sweep)

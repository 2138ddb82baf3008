"""Traces: timelines of a task graph as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

It does not know whether a timeline was simulated or measured: its name says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from castile.launch.typed import files
from castile.runtime.task import NUM_LANES, Kind, Lane, TaskGraph
from castile.runtime.timeline import Timeline

PICOSECONDS_PER_MICROSECOND = 10**6


def write(path: str, graph: TaskGraph, lanes: Mapping[str, Timeline | None], step: int | None = None) -> None:
    """Writes the named timelines, each as a process with a row for every lane that its tasks occupy.

    A timeline may hold any of the graph's tasks; a name without one is left out. Times are in microseconds since the
    step began; a task's arguments are its number, the step and the fields of its cost key. Raises UserError where the
    file cannot be written.
    """
    with files.whole(path) as draft, draft.open("w", encoding="utf-8") as file:
        # Of a large plan there are more events than memory should hold.
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for number, event in enumerate(_events(graph, lanes, {} if step is None else {"step": step})):
            file.write(", " * (number > 0) + json.dumps(event))
        file.write("]}")


def _events(
    graph: TaskGraph, lanes: Mapping[str, Timeline | None], common: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    for pid, (name, timeline) in enumerate(lanes.items()):
        if timeline is not None:
            yield _named("process_name", pid, 0, name)
            yield from _rows(graph, timeline, pid)
            yield from _spans(graph, timeline, pid, common)


def _rows(graph: TaskGraph, timeline: Timeline, pid: int) -> Iterator[dict[str, Any]]:
    """Names and places of the rows, by processor and lane."""
    is_shown = np.zeros(graph.num_tasks, bool)
    is_shown[timeline.task] = True
    for row in np.unique(graph.lanes[np.repeat(is_shown, np.diff(graph.lane_ptr))]).tolist():
        proc, lane = divmod(row, NUM_LANES)
        yield _named("thread_name", pid, row, f"processor {proc} {Lane(lane).name.lower()}")
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": row, "args": {"sort_index": row}}


def _spans(graph: TaskGraph, timeline: Timeline, pid: int, common: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One span for every lane of every task."""
    costs = [msgspec.structs.asdict(key) for key in graph.cost_keys]
    for task, start, end in zip(timeline.task.tolist(), timeline.start.tolist(), timeline.end.tolist(), strict=True):
        span = {
            "ph": "X",
            "name": graph.tasks[task].name,
            "cat": Kind(graph.kind[task]).name.lower(),
            "ts": start / PICOSECONDS_PER_MICROSECOND,
            "dur": (end - start) / PICOSECONDS_PER_MICROSECOND,
            "pid": pid,
            "args": {"task": task, **common, **costs[graph.cost[task]]},
        }
        for row in graph.lanes_of(task).tolist():
            yield {**span, "tid": row}


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}

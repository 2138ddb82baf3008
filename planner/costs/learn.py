"""Learning: measured timelines become rows of a snapshot, the seconds of each cost key.

It does not know how timelines are measured, nor what is predicted from the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from castile.planner.costs.snapshot import Measured, Snapshot, with_rows
from castile.runtime.task import NUM_LANES, Kind, Lane, TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

# Old steps weigh at most this many times as much as new ones: machines change.
MEMORY = 4
# Transfers are not learned from a step in which a rank waited for a core for more than this share of the step: one time
# slice of another program on the core of one member is many times as long as most transfers.
DELAYED = 0.1


def learn(snapshot: Snapshot, graph: TaskGraph, timelines: list[Timeline]) -> Snapshot:
    """The snapshot with measured steps added.

    timelines   one merged timeline a step, all of one graph, without warm-up steps

    A key's seconds in a step are the mean over its tasks; over steps the median is taken, which ignores disturbed ones.
    Transfers and the overhead a task are learned only from steps that other programs did not delay; where all were
    delayed and nothing is known the quickest counts, as one measurement. Rows of the snapshot are averaged with the new
    ones, weighted by counts. Raises ValueError where a task ends before it starts, or a timeline is not of this graph.
    """
    if not timelines:
        raise ValueError("no measured steps to learn from")
    seconds = np.stack([_seconds_per_key(graph, timeline) for timeline in timelines])
    rows = {row.key: row for row in snapshot.rows}
    free = ~np.array([is_delayed(timeline) for timeline in timelines])
    for k in np.flatnonzero(~np.isnan(seconds).all(axis=0)):
        key, ran = graph.cost_keys[k], ~np.isnan(seconds[:, k])
        counted = seconds[ran & free if key.link else ran, k]
        if not len(counted):
            if key in rows:
                continue
            counted = seconds[ran, k].min(keepdims=True)
        low, median, high = (float(q) for q in np.percentile(counted, (25, 50, 75)))
        rows[key] = _average(rows.get(key), Measured(key, median, (high - low) / 2, len(counted)))
    overhead = _overhead(snapshot, graph, timelines)
    return with_rows(msgspec.structs.replace(snapshot, overhead_seconds=overhead), rows.values())


def is_delayed(timeline: Timeline) -> bool:
    """Whether other programs had the cores for too much of a step to learn transfers from it."""
    return timeline.delayed > DELAYED * timeline.seconds * PICOSECONDS


def undisturbed(timelines: Sequence[Timeline]) -> float:
    """The seconds of an undisturbed step: the median over steps that are not delayed, less the time that a rank waited
    for a core; where all are delayed, those of the quickest.
    """
    free = [t.seconds - t.delayed / PICOSECONDS for t in timelines if not is_delayed(t)]
    return float(np.median(free)) if free else min(t.seconds for t in timelines)


def _seconds_per_key(graph: TaskGraph, timeline: Timeline) -> np.ndarray:
    """The mean seconds of each cost key's tasks in one step, NaN for keys that did not run."""
    if len(timeline.task) and not 0 <= timeline.task.min() <= timeline.task.max() < graph.num_tasks:
        raise ValueError(f"timeline names task {timeline.task.max()} of a graph with {graph.num_tasks}")
    durations = timeline.durations()
    if (durations < 0).any():
        task = int(timeline.task[np.argmin(durations)])
        raise ValueError(f"measured task {task} ends before it starts; a failed measurement is not a cost")
    cost = graph.cost[timeline.task]
    total = np.bincount(cost, weights=durations / PICOSECONDS, minlength=len(graph.cost_keys))
    count = np.bincount(cost, minlength=len(graph.cost_keys))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _average(old: Measured | None, new: Measured) -> Measured:
    if old is None:
        return new
    weight = min(old.count, MEMORY * new.count)
    total = weight + new.count
    seconds = (old.seconds * weight + new.seconds * new.count) / total
    spread = (old.spread_seconds * weight + new.spread_seconds * new.count) / total
    return Measured(new.key, seconds, spread, old.count + new.count)


def _overhead(snapshot: Snapshot, graph: TaskGraph, timelines: list[Timeline]) -> float:
    """The overhead a task in seconds: the mean gap before a step's compute tasks, then the median over steps.

    Most gaps are short; in some, transfers are begun and polled. The mean keeps their sum over a step.
    """
    means = [(gaps.mean(), is_delayed(t)) for t in timelines if len(gaps := gaps_of(graph, t))]
    free = [mean for mean, was_delayed in means if not was_delayed]
    if free:
        return float(np.median(free)) / PICOSECONDS
    if snapshot.overhead_seconds or not means:
        return snapshot.overhead_seconds
    return float(min(mean for mean, _ in means)) / PICOSECONDS


def gaps_of(graph: TaskGraph, timeline: Timeline) -> np.ndarray:
    """int64: the picoseconds between each compute task and the last end of anything before it on its processor.

    A processor's first task has none. Tasks that need a transfer are left out: the gap before them is waiting, which no
    span of a transfer shows.
    """
    waiting = np.repeat(np.arange(graph.num_tasks), np.diff(graph.need_ptr))[graph.kind[graph.needs] >= Kind.MOVE]
    position = np.full(graph.num_tasks, -1)
    position[timeline.task] = np.arange(len(timeline.task))
    at = position[np.repeat(np.arange(graph.num_tasks), np.diff(graph.lane_ptr))]
    proc, lane, at = (a[at >= 0] for a in (graph.lanes // NUM_LANES, graph.lanes % NUM_LANES, at))
    gaps = []
    for p in np.unique(proc):
        ends = np.sort(timeline.end[at[proc == p]])
        computed = at[(proc == p) & (lane == Lane.COMPUTE)]
        starts = timeline.start[computed[~np.isin(timeline.task[computed], waiting)]]
        before = np.searchsorted(ends, starts, side="right")
        gaps.append(starts[before > 0] - ends[before[before > 0] - 1])
    return np.concatenate(gaps) if gaps else np.zeros(0, np.int64)

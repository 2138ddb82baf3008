"""Learning: measured timelines become a snapshot of what each cost key took.

It does not know how the timelines were made, nor what is predicted from the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from castile.planner.costs.snapshot import Measured, Snapshot, with_rows
from castile.runtime.task import NUM_LANES, Kind, Lane, TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

# Old steps weigh at most this many times as much as the new ones: machines change.
MEMORY = 4
# A step in which a rank waited for a core for more than this share of it says nothing of transfers: one turn of another
# program on the core of one member is many times as long as most of them.
DELAYED = 0.1


def learn(snapshot: Snapshot, graph: TaskGraph, timelines: list[Timeline]) -> Snapshot:
    """The snapshot with the steps of `timelines` learned: one merged timeline a step, all of one graph.

    A key's figure in a step is the mean over its tasks, so that count x figure is what the step spent; over steps the
    median is taken, against disturbed steps. Transfers, and the overhead a task, are not learned from steps that other
    programs held up, but where all were and nothing is known: then the quickest counts, once, as what holds up only
    adds. Warm-up steps are for the caller to drop. Keys known before are averaged, weighted by counts.
    Raises ValueError where a key's tasks took no time, or a timeline is not of this graph.
    """
    if not timelines:
        raise ValueError("no measured steps to learn from")
    seconds = np.stack([_seconds_per_key(graph, timeline) for timeline in timelines])
    rows = {row.key: row for row in snapshot.rows}
    free = ~np.array([held_up(timeline) for timeline in timelines])
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


def held_up(timeline: Timeline) -> bool:
    """Whether other programs had the cores for so much of a step that it says nothing of transfers."""
    return timeline.delayed > DELAYED * timeline.seconds * PICOSECONDS


def undisturbed(timelines: Sequence[Timeline]) -> float:
    """The seconds of a step that other programs do not hold up: the median of those that they did not, less for how
    long a rank waited for a core in it; where they held up all, the quickest, as what holds up only adds."""
    free = [t.seconds - t.delayed / PICOSECONDS for t in timelines if not held_up(t)]
    return float(np.median(free)) if free else min(t.seconds for t in timelines)


def _seconds_per_key(graph: TaskGraph, timeline: Timeline) -> np.ndarray:
    """The mean seconds of each cost key's tasks in one step, NaN for keys that did not run."""
    if len(timeline.task) and not 0 <= timeline.task.min() <= timeline.task.max() < graph.num_tasks:
        raise ValueError(f"timeline names task {timeline.task.max()} of a graph with {graph.num_tasks}")
    lasted = timeline.durations()
    if (lasted < 0).any():
        task = int(timeline.task[np.argmin(lasted)])
        raise ValueError(f"measured task {task} ends before it starts; a failed measurement is not a cost")
    cost = graph.cost[timeline.task]
    total = np.bincount(cost, weights=lasted / PICOSECONDS, minlength=len(graph.cost_keys))
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
    """The gap before a compute task: the mean over each step's tasks, then the median over steps, in seconds.

    Before most tasks little passes, before some transfers are begun and polled: a step has the sum of all. One turn of
    another program is longer than all of these.
    """
    means = [(gaps.mean(), held_up(t)) for t in timelines if len(gaps := gaps_of(graph, t))]
    free = [mean for mean, was_held_up in means if not was_held_up]
    if free:
        return float(np.median(free)) / PICOSECONDS
    if snapshot.overhead_seconds or not means:
        return snapshot.overhead_seconds
    return float(min(mean for mean, _ in means)) / PICOSECONDS


def gaps_of(graph: TaskGraph, timeline: Timeline) -> np.ndarray:
    """Before each compute task but a processor's first: picoseconds since anything ended on that processor.

    Not of tasks that need a transfer: before these there is waiting that no transfer's span shows.
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

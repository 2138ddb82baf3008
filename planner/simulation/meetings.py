"""Meetings: by how much steps are longer than their tasks make them, learned as what each transfer takes besides.

Where processors meet the last to come counts, and tasks that take what they typically take are never late; a transfer
goes on where its processor looks at it, and that is between kernels. No task's span shows either. It does not know what
tasks compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from castile.planner.cost import CostModel
from castile.planner.costs.learn import is_delayed, undisturbed
from castile.planner.costs.snapshot import Snapshot
from castile.planner.simulate import simulate
from castile.runtime.machine import Machine
from castile.runtime.task import TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

# Meetings seen before count as so many at most: machines change.
REMEMBERED = 30_000


@dataclass(frozen=True, eq=False)
class Lesson:
    """What steps of one graph took that others did not hold up, and how many transfers they had all together."""

    graph: TaskGraph
    seconds: float
    num_meetings: int


def lesson(graph: TaskGraph, timelines: Sequence[Timeline]) -> Lesson | None:
    """What these steps say of meetings; None without transfers, and where other programs held up all of them."""
    free = [timeline for timeline in timelines if not is_delayed(timeline)]
    count = len(free) * int(_is_transfer(graph)[graph.cost].sum())
    return Lesson(graph, undisturbed(free), count) if count else None


def learn(snapshot: Snapshot, before: Snapshot, machine: Machine, lessons: Sequence[Lesson]) -> Snapshot:
    """The snapshot, which has learned what the tasks of these lessons take, with what their meetings take besides.

    That with which the simulated steps are nearest to those measured, by least squares of their ratios' logarithms, at
    least nothing; averaged over all transfers with what was known before these lessons.
    """
    # Prices take longer to find than to see that nothing is learned.
    if not lessons:
        return snapshot
    seconds, number = _seconds(snapshot, machine, lessons), sum(one.num_meetings for one in lessons)
    known = min(before.num_meetings, REMEMBERED)
    mean = (before.meeting_seconds * known + seconds * number) / (known + number)
    return msgspec.structs.replace(snapshot, meeting_seconds=mean, num_meetings=known + number)


def _seconds(snapshot: Snapshot, machine: Machine, lessons: Sequence[Lesson]) -> float:
    """What each transfer takes besides where steps take as long as was measured."""
    # slow to import
    from scipy.optimize import minimize_scalar

    cost = CostModel(machine, msgspec.structs.replace(snapshot, meeting_seconds=0.0))
    priced = [cost.by_kind(one.graph) for one in lessons]
    measured = np.array([one.seconds for one in lessons])

    def simulated(besides: float) -> np.ndarray:
        more = round(besides * PICOSECONDS)
        steps = (simulate(graph, each + more * _is_transfer(graph), machine.engines) for graph, each in priced)
        return np.array([step.seconds for step in steps])

    def error(besides: float) -> float:
        return float((np.log(simulated(besides) / measured) ** 2).sum())

    most = float((measured - simulated(0.0)).max())
    if most <= 0:
        return 0.0
    found = minimize_scalar(error, bounds=(0.0, most), method="bounded", options={"xatol": 1e-7})
    return float(found.x) if found.fun < error(0.0) else 0.0


def _is_transfer(graph: TaskGraph) -> np.ndarray:
    """bool[K], by cost key."""
    return np.array([bool(key.link) for key in graph.cost_keys], bool)

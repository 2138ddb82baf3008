"""Meetings: the time that transfers add to a step beyond the spans of its tasks, learned as seconds of each transfer.

Two causes show in no span. Where processors meet the last to arrive counts, while tasks of typical duration are never
late. And a transfer progresses only where its processor polls it, between kernels. It does not know what tasks compute.
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

# Earlier meetings count as at most this many, since machines change.
REMEMBERED = 30_000


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """The seconds of an undisturbed step of a graph, and the number of transfers in all its undisturbed steps."""

    graph: TaskGraph
    seconds: float
    num_meetings: int


def measured_steps(graph: TaskGraph, timelines: Sequence[Timeline]) -> MeasuredSteps | None:
    """The measurement that these steps give; None without transfers, and where other programs delayed all steps."""
    free = [timeline for timeline in timelines if not is_delayed(timeline)]
    count = len(free) * int(_is_transfer(graph)[graph.cost].sum())
    return MeasuredSteps(graph, undisturbed(free), count) if count else None


def learn(snapshot: Snapshot, before: Snapshot, machine: Machine, measured: Sequence[MeasuredSteps]) -> Snapshot:
    """The snapshot with the seconds of a meeting fitted to measured steps.

    snapshot   has learned the tasks of these steps already
    before     the snapshot before these steps
    The fit minimizes the sum of squared log ratios of simulated to measured steps, and is at least 0. It is averaged
    with that of `before`, weighted by numbers of transfers.
    """
    # Without steps to learn from no price is computed, which takes long.
    if not measured:
        return snapshot
    seconds, number = _fitted_seconds(snapshot, machine, measured), sum(one.num_meetings for one in measured)
    known = min(before.num_meetings, REMEMBERED)
    mean = (before.meeting_seconds * known + seconds * number) / (known + number)
    return msgspec.structs.replace(snapshot, meeting_seconds=mean, num_meetings=known + number)


def _fitted_seconds(snapshot: Snapshot, machine: Machine, measured: Sequence[MeasuredSteps]) -> float:
    """The seconds of a meeting with which simulated steps fit measured ones best."""
    # slow to import
    from scipy.optimize import minimize_scalar

    cost = CostModel(machine, msgspec.structs.replace(snapshot, meeting_seconds=0.0))
    priced = [cost.by_kind(one.graph) for one in measured]
    step_seconds = np.array([one.seconds for one in measured])

    def simulated(meeting: float) -> np.ndarray:
        more = round(meeting * PICOSECONDS)
        steps = (simulate(graph, each + more * _is_transfer(graph), machine.engines) for graph, each in priced)
        return np.array([step.seconds for step in steps])

    def error(meeting: float) -> float:
        return float((np.log(simulated(meeting) / step_seconds) ** 2).sum())

    most = float((step_seconds - simulated(0.0)).max())
    if most <= 0:
        return 0.0
    found = minimize_scalar(error, bounds=(0.0, most), method="bounded", options={"xatol": 1e-7})
    return float(found.x) if found.fun < error(0.0) else 0.0


def _is_transfer(graph: TaskGraph) -> np.ndarray:
    """bool[K]: by cost key, whether it is of a transfer."""
    return np.array([bool(key.link) for key in graph.cost_keys], bool)

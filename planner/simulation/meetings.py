"""Meetings: by how much steps are longer than their tasks make them, learned as what each transfer takes besides.

Where processors meet the last to come counts, and tasks that take what they typically take are never late; a transfer
goes on where its processor looks at it, and that is between kernels. No task's span shows either. It does not know what
tasks compute.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from castile.planner.cost import CostModel
from castile.planner.costs.learn import held_up
from castile.planner.costs.snapshot import Snapshot
from castile.planner.simulate import simulate
from castile.runtime.machine import Machine
from castile.runtime.task import TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

# Meetings seen before count as so many at most: machines change.
REMEMBERED = 30_000


def learn(snapshot: Snapshot, machine: Machine, graph: TaskGraph, timelines: Sequence[Timeline]) -> Snapshot:
    """The snapshot, which has learned what the tasks of these steps take, with what their meetings take besides.

    That with which the simulated step takes as long as the median of those measured, averaged over all transfers that
    were learned from; at least nothing. Steps that other programs held up say nothing of it.
    """
    measured = [timeline.seconds for timeline in timelines if not held_up(timeline)]
    count = len(measured) * int(_is_transfer(graph)[graph.cost].sum())
    # Prices take longer to find than to see that nothing is learned.
    if not count:
        return snapshot
    seconds = _seconds(snapshot, machine, graph, float(np.median(measured)))
    known = min(snapshot.num_meetings, REMEMBERED)
    mean = (snapshot.meeting_seconds * known + seconds * count) / (known + count)
    return msgspec.structs.replace(snapshot, meeting_seconds=mean, num_meetings=known + count)


def _seconds(snapshot: Snapshot, machine: Machine, graph: TaskGraph, measured: float) -> float:
    """What each transfer takes besides where the step takes as long as was measured."""
    # slow to import
    from scipy.optimize import brentq

    without = msgspec.structs.replace(snapshot, meeting_seconds=0.0)
    priced, durations = CostModel(machine, without).by_kind(graph)
    is_transfer = _is_transfer(priced)

    def longer(besides: float) -> float:
        more = round(besides * PICOSECONDS) * is_transfer
        return simulate(priced, durations + more, machine.engines).seconds - measured

    return float(brentq(longer, 0.0, measured, xtol=1e-7)) if longer(0.0) < 0 else 0.0


def _is_transfer(graph: TaskGraph) -> np.ndarray:
    """bool[K], by cost key."""
    return np.array([bool(key.link) for key in graph.cost_keys], bool)

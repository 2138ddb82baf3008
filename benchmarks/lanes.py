"""What each processor did in a measured step: computed, waited for transfers, waited for its neighbours.

It does not know why.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from castile.runtime.task import Kind, TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline

Spans = np.ndarray


@dataclass(frozen=True)
class Lanes:
    """Seconds of a step by processor [P].

    step      from the first task's start to the last one's end, alike for all
    compute   the compute lane works: kernels, packing, adding up
    transfer  at least one transfer of the processor is under way: its last member has come, it has not ended
    exposed   both: a transfer is under way and the compute lane stands still
    """

    step: float
    compute: np.ndarray
    transfer: np.ndarray
    exposed: np.ndarray

    @property
    def hidden_share(self) -> float:
        """1 - exposed / transfer over all processors: how much of the transfers' time was worked through."""
        whole = float(self.transfer.sum())
        return 1 - float(self.exposed.sum()) / whole if whole > 0 else float("nan")


def lanes(tasks: TaskGraph, timeline: Timeline) -> Lanes:
    """What the processors of a whole step did; `timeline` holds the tasks of all of them."""
    moves = tasks.kind[timeline.task] >= Kind.MOVE
    rows = []
    for proc in range(tasks.num_procs):
        mine = np.isin(timeline.task, tasks.tasks_of(proc))
        compute, transfer = (_union(timeline, mine & chosen) for chosen in (~moves, moves))
        rows.append((_length(compute), _length(transfer), _length(transfer) - _common(transfer, compute)))
    compute_seconds, transfer_seconds, exposed = (np.array(row) / PICOSECONDS for row in zip(*rows))
    step = float(timeline.end.max() - timeline.start.min()) / PICOSECONDS
    return Lanes(step, compute_seconds, transfer_seconds, exposed)


def _union(timeline: Timeline, chosen: np.ndarray) -> Spans:
    """The chosen spans as disjoint ones [N, 2], ascending."""
    order = np.flatnonzero(chosen)[np.argsort(timeline.start[chosen], kind="stable")]
    merged: list[list[int]] = []
    for start, end in zip(timeline.start[order].tolist(), timeline.end[order].tolist()):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return np.array(merged, np.int64).reshape(-1, 2)


def _length(spans: Spans) -> int:
    return int((spans[:, 1] - spans[:, 0]).sum())


def _common(one: Spans, other: Spans) -> int:
    """How long both last: of disjoint spans each overlaps the other's by the difference of covered time at its ends."""
    if len(other) == 0:
        return 0
    covered = np.concatenate([[0], np.cumsum(other[:, 1] - other[:, 0])])

    def before(times: np.ndarray) -> np.ndarray:
        at = np.searchsorted(other[:, 0], times, side="right")
        last = np.maximum(at - 1, 0)
        return covered[at] - np.where(at > 0, np.maximum(0, other[last, 1] - times), 0)

    return int((before(one[:, 1]) - before(one[:, 0])).sum())

"""Replays: steps simulated with the measured durations of their tasks, which separate two errors of a prediction.

One is the error of task durations. The rest is waiting, and time between tasks. It does not know how steps were
measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from castile.planner.cost import CostModel
from castile.planner.costs.learn import is_delayed
from castile.planner.simulate import simulate
from castile.runtime.task import TaskGraph
from castile.runtime.timeline import PICOSECONDS, Timeline


@dataclass(frozen=True)
class Sort:
    """The tasks of one sort in a step: of an operator's pass, as `conv2d.F`, or of a form of transfer.

    predicted_seconds, measured_seconds   the sum of their durations
    sources                               the predicted seconds by their source (`Priced`)
    step_seconds                          the step simulated with measured durations for these tasks only
    """

    num_tasks: int
    predicted_seconds: float
    measured_seconds: float
    sources: Mapping[str, float]
    step_seconds: float


@dataclass(frozen=True)
class Replay:
    """The seconds of a step as predicted, as measured, and as simulated with measured durations.

    typical_seconds    with the median duration of each task over all steps
    replayed_seconds   with the durations of one step, the median over all steps
    measured_seconds   the median of the measured steps
    sorts              by name, in the order of their first tasks
    """

    predicted_seconds: float
    typical_seconds: float
    replayed_seconds: float
    measured_seconds: float
    sorts: Mapping[str, Sort]


def replay(graph: TaskGraph, cost: CostModel, timelines: Sequence[Timeline]) -> Replay:
    """Simulate a graph with the task durations of its measured steps.

    Steps that other programs delayed are left out, unless all were. A task without a span has its predicted duration.
    Raises ValueError where there is no step.
    """
    if not timelines:
        raise ValueError("no measured steps to replay")
    steps = [t for t in timelines if not is_delayed(t)] or timelines
    keyed, prices = _with_own_keys(*cost.by_kind(graph))
    spans, engines = _spans(steps, keyed.num_tasks), cost.machine.engines
    besides = np.rint([cost.besides(key) * PICOSECONDS for key in keyed.cost_keys])
    took = np.where(np.isnan(spans), prices, np.maximum(1, spans + besides)).astype(np.int64)
    typical = np.median(took, axis=0).astype(np.int64)

    def step(durations: np.ndarray) -> float:
        return simulate(keyed, durations, engines).seconds

    sorts = {
        name: _sort(keyed, cost, which, prices - besides, typical - besides, step(np.where(which, typical, prices)))
        for name, which in _tasks_by_sort(keyed).items()
    }
    return Replay(
        predicted_seconds=step(prices),
        typical_seconds=step(typical),
        replayed_seconds=float(np.median([step(each) for each in took])),
        measured_seconds=float(np.median([t.seconds for t in steps])),
        sorts=sorts,
    )


def _with_own_keys(graph: TaskGraph, durations: np.ndarray) -> tuple[TaskGraph, np.ndarray]:
    """The graph with a cost key of its own for each task, and int64[T], the picoseconds of each."""
    keys = tuple(graph.cost_keys[c] for c in graph.cost.tolist())
    return replace(graph, cost=np.arange(graph.num_tasks), cost_keys=keys), durations[graph.cost]


def _spans(steps: Sequence[Timeline], num_tasks: int) -> np.ndarray:
    """float64[S, T]: picoseconds of each of T tasks in each of S steps, NaN where it did not run."""
    spans = np.full((len(steps), num_tasks), np.nan)
    for row, timeline in zip(spans, steps, strict=True):
        row[timeline.task] = timeline.durations()
    return spans


def _tasks_by_sort(graph: TaskGraph) -> dict[str, np.ndarray]:
    """bool[T] by sort: whether each task is of it."""
    tasks: dict[str, list[int]] = defaultdict(list)
    for task, key in enumerate(graph.cost_keys):
        tasks[key.work].append(task)
    return {name: np.isin(np.arange(graph.num_tasks), of) for name, of in tasks.items()}


def _sort(
    graph: TaskGraph, cost: CostModel, which: np.ndarray, predicted: np.ndarray, took: np.ndarray, seconds: float
) -> Sort:
    """The sort of the tasks `which`.

    predicted, took   int64[T], picoseconds of the tasks' spans
    seconds           the step simulated with measured durations for these tasks
    """
    sources: dict[str, float] = defaultdict(float)
    for task in np.flatnonzero(which).tolist():
        sources[cost.seconds(graph.cost_keys[task]).source] += float(predicted[task]) / PICOSECONDS
    lasted = float(took[which].sum()) / PICOSECONDS
    return Sort(int(which.sum()), sum(sources.values()), lasted, dict(sources), seconds)

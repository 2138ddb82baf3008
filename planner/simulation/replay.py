"""Replays: steps simulated with what their tasks took, which tell what of a prediction's error lies in tasks' times.

What is left of the error then is waiting, and what passes between tasks. It does not know how steps were measured.
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
    """The tasks of one sort in a step: an operator's pass, as `conv2d.F`, or a form of transfer.

    predicted_seconds, measured_seconds   what they take one after the other
    sources        of the predicted seconds how many come from which source (`Priced`)
    step_seconds   the predicted step, were these tasks predicted to take what they took
    """

    num_tasks: int
    predicted_seconds: float
    measured_seconds: float
    sources: Mapping[str, float]
    step_seconds: float


@dataclass(frozen=True)
class Replay:
    """A step as predicted, as measured, and as simulated with measured times of tasks.

    typical_seconds    with what each task took by the median of all steps
    replayed_seconds   with what each task took in the very step, by the median of all steps
    measured_seconds   the median of these steps
    sorts              by name, in the order in which they begin
    """

    predicted_seconds: float
    typical_seconds: float
    replayed_seconds: float
    measured_seconds: float
    sorts: Mapping[str, Sort]


def replay(graph: TaskGraph, cost: CostModel, timelines: Sequence[Timeline]) -> Replay:
    """What these measured steps of a graph say of its prediction.

    Of steps that other programs held up nothing is said, but where all were. A task without a span in them is taken as
    predicted. Raises ValueError where there is no step.
    """
    if not timelines:
        raise ValueError("no measured steps to replay")
    steps = [t for t in timelines if not is_delayed(t)] or timelines
    apart, prices = _one_by_one(*cost.by_kind(graph))
    spans, engines = _spans(steps, apart.num_tasks), cost.machine.engines
    besides = np.rint([cost.besides(key) * PICOSECONDS for key in apart.cost_keys])
    took = np.where(np.isnan(spans), prices, np.maximum(1, spans + besides)).astype(np.int64)
    typical = np.median(took, axis=0).astype(np.int64)

    def step(durations: np.ndarray) -> float:
        return simulate(apart, durations, engines).seconds

    sorts = {
        name: _sort(apart, cost, which, prices - besides, typical - besides, step(np.where(which, typical, prices)))
        for name, which in _sorts(apart).items()
    }
    return Replay(
        predicted_seconds=step(prices),
        typical_seconds=step(typical),
        replayed_seconds=float(np.median([step(each) for each in took])),
        measured_seconds=float(np.median([t.seconds for t in steps])),
        sorts=sorts,
    )


def _one_by_one(graph: TaskGraph, durations: np.ndarray) -> tuple[TaskGraph, np.ndarray]:
    """The graph with a cost key for each task, and what each task takes."""
    keys = tuple(graph.cost_keys[c] for c in graph.cost.tolist())
    return replace(graph, cost=np.arange(graph.num_tasks), cost_keys=keys), durations[graph.cost]


def _spans(steps: Sequence[Timeline], num_tasks: int) -> np.ndarray:
    """float64[S, T]: picoseconds of each task in each step, NaN where it did not run."""
    spans = np.full((len(steps), num_tasks), np.nan)
    for row, timeline in zip(spans, steps, strict=True):
        row[timeline.task] = timeline.durations()
    return spans


def _sorts(graph: TaskGraph) -> dict[str, np.ndarray]:
    """By sort bool[T], which tasks are of it."""
    tasks: dict[str, list[int]] = defaultdict(list)
    for task, key in enumerate(graph.cost_keys):
        tasks[key.work].append(task)
    return {name: np.isin(np.arange(graph.num_tasks), of) for name, of in tasks.items()}


def _sort(
    graph: TaskGraph, cost: CostModel, which: np.ndarray, predicted: np.ndarray, took: np.ndarray, seconds: float
) -> Sort:
    """predicted, took: int64[T], picoseconds that spans last; seconds: the step with what these took."""
    sources: dict[str, float] = defaultdict(float)
    for task in np.flatnonzero(which).tolist():
        sources[cost.seconds(graph.cost_keys[task]).source] += float(predicted[task]) / PICOSECONDS
    lasted = float(took[which].sum()) / PICOSECONDS
    return Sort(int(which.sum()), sum(sources.values()), lasted, dict(sources), seconds)

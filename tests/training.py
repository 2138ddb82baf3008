"""Trains a graph under a plan with all ranks in one process, and gathers what it learned.

It does not know what the plan should have learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from castile.launch.jobs.execution import Execution, Prepared, feed_from, prepare
from castile.planner.cost import CostModel
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.lower import Lowering
from castile.planner.ops.sgd import Sgd
from castile.planner.strategy import Strategy
from castile.runtime.comm.base import Communicator
from castile.runtime.comm.local import LocalWorld
from castile.runtime.comm.processors import rank_of
from castile.runtime.machine import Machine
from castile.runtime.region import slices
from castile.runtime.runner import run_local
from castile.runtime.timeline import Timeline

SGD = Updates(Sgd(momentum=0.5))


@dataclass(frozen=True)
class Trained:
    """Losses by step, parameters and optimizer state by name, the plan as it ran, and each rank's last timeline."""

    losses: np.ndarray
    carried: dict[str, np.ndarray]
    prepared: Prepared
    timelines: tuple[Timeline, ...]


def train(
    graph: Graph,
    strategy: Strategy,
    machine: Machine,
    data: Sequence[Mapping[str, np.ndarray]],
    values: Mapping[str, np.ndarray],
    rate: float = 0.125,
    size: int = 1,
    updates: Updates = SGD,
) -> Trained:
    """One step for each of `data` on `size` ranks of one process, on poisoned memory, from `values` of parameters."""
    prepared = prepare(Lowering(graph, machine, updates), strategy, CostModel(machine))
    world = LocalWorld(size)
    executions = [start(graph, prepared, comm, values) for comm in world.communicators]
    losses = []
    for step, arrays in enumerate(data):
        for execution in executions:
            execution.feed(feed_from(arrays), rate, step)
        run_local([execution.runner for execution in executions])
        losses += [float(found) for e in executions if (found := e.output(graph.loss)) is not None]
    assert len(losses) == len(data) and world.quiet
    timelines = tuple(execution.runner.timeline() for execution in executions)
    return Trained(np.array(losses), gather(graph, executions), prepared, timelines)


def start(graph: Graph, prepared: Prepared, comm: Communicator, values: Mapping[str, np.ndarray]) -> Execution:
    """This rank's part, with its parameters."""
    ranks = rank_of(prepared.tasks.num_procs, comm.size)
    procs = [proc for proc, rank in enumerate(ranks) if rank == comm.rank]
    execution = Execution(graph, prepared, comm, procs, poison=True)
    execution.initialise(0, values)
    return execution


def gather(graph: Graph, executions: Sequence[Execution]) -> dict[str, np.ndarray]:
    """Every carried region whole; its pieces must cover it, and replicas must agree to the last bit."""
    whole: dict[str, np.ndarray] = {}
    shapes = {region: extents(executions, region) for region in _carried(executions)}
    for execution in executions:
        for (region, box, _), array in execution.carried.items():
            into = whole.setdefault(region, np.full(shapes[region], np.nan))[..., *slices(box)]
            assert np.isnan(into).all() or np.array_equal(into, array), f"replicas of {region} differ"
            into[...] = array
    assert not any(np.isnan(array).any() for array in whole.values())
    return whole


def extents(executions: Sequence[Execution], region: str) -> tuple[int, ...]:
    """The shape of a carried region, from its pieces."""
    boxes = [box for execution in executions for name, box, _ in execution.carried if name == region]
    return tuple(max(box.hi[dim] for box in boxes) for dim in range(len(boxes[0].hi)))


def _carried(executions: Sequence[Execution]) -> set[str]:
    return {region for execution in executions for region, _, _ in execution.runner.persistent("carried")}


def apart(made: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], name: str, least: float = 0.0) -> float:
    """How far apart what two runs carry by that name is: state counts by the parameter that it moves, as a gradient may
    be zero but for rounding, and that by `least` where it is less.
    """
    moved = max(least, np.abs(expected[name.rpartition("/")[0] or name]).max())
    return difference(made[name], expected[name], moved)


def difference(a: np.ndarray, b: np.ndarray, least: float = 0.0) -> float:
    """max|a-b| over max|b|, or over `least` where that is more; 0 where all are zero."""
    most = max(least, float(np.abs(b).max(initial=0.0)))
    gap = float(np.abs(a - b).max(initial=0.0))
    return gap / most if most else float(gap > 0)

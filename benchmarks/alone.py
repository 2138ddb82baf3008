"""A model on one rank alone: castile's own step of it, ready to run, and its data.

It does not know what the step is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from castile.launch import data, models
from castile.launch.data import Arrays, Dataset
from castile.launch.jobs import jobs, numbers
from castile.launch.jobs.execution import Execution, Prepared
from castile.launch.jobs.jobs import Job
from castile.launch.models import Recipe
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.ops.sgd import Sgd
from castile.runtime import rng

SEED = 0


@dataclass(frozen=True)
class Workload:
    """A job with its data."""

    job: Job
    dataset: Dataset

    @property
    def graph(self) -> Graph:
        return self.job.graph

    @property
    def recipe(self) -> Recipe:
        return self.job.model.recipe


def workload(model: str, batch: int, noise: bool = False) -> Workload:
    """The model on this job's ranks, with the data of its recipe or noise; nothing that was measured before is used.

    Parameters move by momentum alone, whatever else the recipe says.
    """
    updates = Updates(Sgd(momentum=models.parse(model).recipe.momentum))
    job = jobs.start(model, "local", batch, "", updates)
    if noise:
        return Workload(job, _noise(job.graph))
    return Workload(job, data.load(job.model.recipe.data, SEED, numbers.taken(job.graph)))


def _noise(graph: Graph, num: int = 1000) -> Dataset:
    """Normal numbers, and integers below the number of classes."""
    classes = graph.tensors[graph.outputs[0]].shape[-1]
    tensors = {name: graph.tensors[name] for name in graph.inputs}
    samples = Arrays({
        name: rng.normal(SEED, name, (num, *t.shape[1:])).astype(np.float32) if t.floating
        else np.arange(num * prod(t.shape[1:]), dtype=np.int32).reshape(num, *t.shape[1:]) % classes
        for name, t in tensors.items()
    })  # fmt: skip
    return Dataset("noise", SEED, samples, samples)


def alone(work: Workload) -> tuple[Prepared, Execution]:
    """The whole step on one processor."""
    assert work.job.machine.num_procs == 1, "a workload of one rank"
    prepared = work.job.prepare(next(iter(seeds(work.job.lowering).values())))
    return prepared, work.job.execute(prepared, SEED)

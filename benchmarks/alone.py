"""A model on one rank alone: castile's own step of it, ready to run, and its data.

It does not know what the step is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass

from castile.launch import models
from castile.launch.data import Dataset
from castile.launch.jobs import jobs
from castile.launch.jobs.execution import Execution, Prepared
from castile.launch.jobs.jobs import Job
from castile.launch.models import Recipe
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.ops.sgd import Sgd

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


def workload(model: str, batch: int, dataset: str = "") -> Workload:
    """The model on this job's ranks, with a data set or that of its recipe; nothing that was measured before is used.

    Parameters move by momentum alone, whatever else the recipe says.
    """
    updates = Updates(Sgd(momentum=models.parse(model).recipe.momentum))
    job = jobs.start(model, "local", batch, "", updates)
    return Workload(job, job.dataset(dataset, SEED))


def alone(work: Workload) -> tuple[Prepared, Execution]:
    """The whole step on one processor."""
    assert work.job.machine.num_procs == 1, "a workload of one rank"
    prepared = work.job.prepare(next(iter(seeds(work.job.lowering).values())))
    return prepared, work.job.execute(prepared, SEED)

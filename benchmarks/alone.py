"""A model on one rank alone: castile's own step of it, ready to run, and its data.

It does not know what the step is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass

from castile.launch import data, jobs
from castile.launch.data import Dataset
from castile.launch.execution import Execution, Prepared
from castile.launch.jobs import Job
from castile.launch.models import Recipe
from castile.planner.graph import Graph
from castile.planner.seeds import seeds

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


def workload(model: str, batch: int) -> Workload:
    """The model on this job's ranks, with the data of its recipe; nothing that was measured before is used."""
    job = jobs.start(model, "local", batch, "")
    lengths = [t.shape[1] for t in (job.graph.tensors[name] for name in job.graph.inputs) if len(t.shape) == 2]
    dataset = data.load(job.model.recipe.data, SEED, **({"seq": lengths[0]} if lengths else {}))
    return Workload(job, dataset)


def alone(work: Workload) -> tuple[Prepared, Execution]:
    """The whole step on one processor."""
    assert work.job.machine.num_procs == 1, "a workload of one rank"
    prepared = work.job.prepare(next(iter(seeds(work.job.lowering).values())))
    return prepared, work.job.execute(prepared, SEED)

"""Ranks of one host compile in parallel what they would otherwise compile one after the other.

It does not know what loops there are, nor what searches find.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from castile.launch.jobs.execution import Execution, Feed, prepare
from castile.launch.jobs.jobs import Job
from castile.planner.known.seeds import seeds
from castile.planner.sketch.sketch import is_compiled
from castile.runtime.comm.local import LocalWorld

ALONE = "one_processor"


def compile_in_parallel(job: Job, search: Callable[[], object], feed: Feed, rate: float) -> None:
    """Where no search was ever compiled: one rank of the first host compiles all that steps need, another one the
    search.

    The results of both are dropped. Compiled loops are kept on disk, where all ranks of the host find them; otherwise
    the first rank alone would compile the search later, and all of them the same kernels at once. Ranks do not wait for
    each other here.

    search   runs a short search
    """
    comm = job.comm
    if job.backend != "numpy" or comm.host_index or comm.local_rank > 1 or comm.local_size < 2 or is_compiled():
        return
    # What fits nowhere is told later, by all ranks.
    with contextlib.suppress(ValueError):
        if comm.local_rank:
            search()
        else:
            _step_alone(job, feed, rate)


def _step_alone(job: Job, feed: Feed, rate: float) -> None:
    """A training step on one processor, without other ranks."""
    (plan,) = seeds(job.lowering, [ALONE], job.cost).values()
    prepared = prepare(job.lowering, plan, job.cost)
    alone = LocalWorld(1).communicators[0]
    execution = Execution(job.graph, prepared, alone, range(job.machine.num_procs))
    execution.initialise(0)
    execution.feed(feed, rate)
    execution.runner.run()

"""Times plans: several plans take turns in running real steps, so that disturbances of the host affect all of them.

On a GPU plans are timed one after the other: it has no other work, and little memory. This module does not know how
plans were found.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter

import numpy as np

from castile.launch.jobs.execution import Execution, Feed, Prepared, feed_from
from castile.launch.jobs.jobs import Job
from castile.planner.costs.learn import DELAYED
from castile.planner.strategy import Strategy
from castile.runtime import cores, rng
from castile.runtime.garbage import set_aside
from castile.runtime.region import whole
from castile.runtime.timeline import Timeline

# Before steps are timed so many are run, and for so long: the first 30 or so of a quick step take up to a fifth longer.
WARM_UP, WARM_UP_SECONDS = 2, 0.05
# They go on while something holds ranks up, but not longer: after a search, in which one works and the others wait, the
# system may have two on one core, and takes up to 0.2 s to see that.
MOST_WARM_UP_SECONDS = 0.25


def sample_feed(job: Job, seed: int = 0) -> Feed:
    """Inputs for steps that are timed: real samples, repeated where there are fewer than a batch.

    They are random numbers where the model's data set is missing or does not fit the graph.
    """
    graph = job.graph
    with contextlib.suppress(ValueError):
        dataset = job.dataset("", seed)
        arrays = dataset.batch(0, min(graph.batch, dataset.num_samples))
        return feed_from({name: np.resize(arrays[name], graph.tensors[name].shape) for name in graph.inputs})
    arrays = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        numbers = rng.uniform(seed, name, tensor.shape, whole(tensor.shape))
        # A model takes 0 and 1 for a class or a token, whatever else it takes.
        arrays[name] = np.round(numbers).astype(tensor.dtype) if "int" in tensor.dtype else numbers
    return feed_from(arrays)


@dataclass
class TimedPlan:
    """A plan to be timed.

    seed    fixes its parameters
    steps   the timelines of its measured steps, of all ranks; on rank 0 only
    """

    name: str
    plan: Strategy
    prepared: Prepared
    seed: int
    steps: list[Timeline] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The median of its steps."""
        return float(np.median([s.seconds for s in self.steps]))

    @property
    def spread_seconds(self) -> float:
        """Half the interquartile range of the steps' seconds."""
        low, high = np.percentile([s.seconds for s in self.steps], (25, 75))
        return float(high - low) / 2


def timed_plan(job: Job, name: str, plan: Strategy, seed: int) -> TimedPlan:
    """A plan to be timed. Raises ValueError where it does not fit into memory."""
    return TimedPlan(name, plan, job.prepare(plan), seed)


def measure(
    job: Job,
    trials: Sequence[TimedPlan],
    feed: Feed,
    rate: float,
    rounds: int,
) -> None:
    """Time `rounds` steps of every plan, after a warm-up; their timelines go into the plans, on rank 0.

    The plans' memory is freed afterwards; plans whose memory fits together take turns. Raises ValueError where there is
    too little for one.
    """
    for those in _together(job, trials):
        with _freeing_cycles():
            _take_turns(job, those, feed, rate, rounds)


def _together(job: Job, trials: Sequence[TimedPlan]) -> list[list[TimedPlan]]:
    """The plans in groups that are held in memory at once: on a GPU each alone."""
    groups, left = list[list[TimedPlan]](), np.zeros(0)
    for t in trials:
        if not groups or job.backend != "numpy" or (left < t.prepared.packing.peak_bytes).any():
            groups.append([])
            left = job.machine.capacity
        groups[-1].append(t)
        left = left - t.prepared.packing.peak_bytes
    return groups


@contextlib.contextmanager
def _freeing_cycles() -> Iterator[None]:
    """A context after which reference cycles that were made in it are freed at once, as they would keep memory for a
    while.

    Objects from before are not traversed: a large plan alone is millions of them.
    """
    with set_aside():
        try:
            yield
        finally:
            gc.collect()


def _take_turns(job: Job, trials: Sequence[TimedPlan], feed: Feed, rate: float, rounds: int) -> None:
    executions: list[Execution] = []
    for t in trials:
        executions.append(job.execute(t.prepared, t.seed))
        executions[-1].feed(feed, rate)
    _warm_up(job, executions)
    for _ in range(rounds):
        job.comm.align_clocks()
        for t, execution in zip(trials, executions, strict=True):
            # after other plans' steps the caches hold other plans' data
            execution.runner.run()
            job.comm.barrier()
            timeline = job.gather(execution.step())
            if timeline is not None:
                t.steps.append(timeline)


def _warm_up(job: Job, executions: Sequence[Execution]) -> None:
    """Run steps in turns until their times are steady."""
    begun = perf_counter()
    for number in count(1):
        since, delayed_ns = perf_counter(), cores.delayed_ns()
        for execution in executions:
            execution.runner.run()
        lasted = perf_counter() - since
        share = 0.0 if job.comm.crowded else (cores.delayed_ns() - delayed_ns) / 1e9 / lasted
        if _are_warm(job, perf_counter() - begun, share) and number >= WARM_UP:
            return


def _are_warm(job: Job, elapsed: float, delayed: float) -> bool:
    """Whether times are steady after `elapsed` seconds, where this rank waited for a core for a share `delayed` of a
    round; the same on all ranks.
    """
    least = WARM_UP_SECONDS if delayed <= DELAYED else MOST_WARM_UP_SECONDS
    gathered = job.comm.gather_bytes(str(elapsed - least).encode())
    return job.agree(lambda: b"over" if min(map(float, gathered or [])) >= 0 else b"") == b"over"

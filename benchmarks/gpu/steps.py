"""Whole training steps: castile's own, and what both sides begin with; it imports no library of a GPU's.

Losses of the first steps are told, so that what was timed is seen to be the same training.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.gpu import cases, clock
from castile.kernels import choice
from castile.launch import models
from castile.launch.jobs import jobs
from castile.launch.jobs.execution import Execution, Prepared, feed_from
from castile.launch.jobs.jobs import Job
from castile.launch.measuring import plan_choice, tuning
from castile.launch.reports import progress
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.ops.adamw import AdamW
from castile.runtime import rng
from castile.runtime.region import whole

SEED, RATE = 0, 1e-4
NUM_LOSSES = 4
# As PyTorch names them; ours are the same by other names.
ADAMW: dict[str, Any] = {"lr": RATE, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
# Steps that are timed task by task, of which the simulator learns, and launches of a step that the host is timed at.
NUM_LEARNED, NUM_LAUNCHES = 10, 30


def graph(case: cases.Step, dtype: str) -> Graph:
    """The model as it is built, before any rewrite."""
    return models.parse(case.model).graph(case.batch, dtype)


def numbers(of: Graph) -> dict[str, np.ndarray]:
    """The samples of every step, by input: normal numbers, and integers below the number of classes."""
    classes = of.tensors[of.outputs[0]].shape[-1]
    return {
        name: rng.normal(SEED, name, t.shape, whole(t.shape)).astype("float32") if t.floating
        else (np.arange(prod(t.shape)) * 7919 % classes).astype(t.dtype).reshape(t.shape)
        for name, t in ((name, of.tensors[name]) for name in of.inputs)
    }  # fmt: skip


def measure(case: cases.Step, kept: str) -> dict[str, Any]:
    """Seconds of a step that is one CUDA graph; `own` is what else is ours: seconds that the host spends on it, what is
    predicted of it when its tasks have been timed, its memory, and why it is no graph where it is none.

    kept  begins the name of the file in which tuning keeps what it finds, call by call, so that it can go on there
    """
    # Neither what was chosen for other cases nor what these left in memory is to help or to stand in the way.
    choice.forget()
    gc.collect()
    first, second = ADAMW["betas"]
    updates = Updates(AdamW(beta1=first, beta2=second, eps=ADAMW["eps"], decay=ADAMW["weight_decay"]))
    words = (kept, *case.model.split(":")[:1], *case.machine.split(":")[:1])
    job = jobs.start(case.model, case.machine, case.batch, "-".join(words) + ".db" if case.tuned else "", updates,
                     dtype=case.dtype)  # fmt: skip
    # On one processor there is one plan, and on several samples are divided; updates come together as in training.
    prepared = job.prepare(next(iter(plan_choice.known(job).values())))
    if case.tuned:
        with patch.object(progress, "bar", _told):
            tuning.tune(job, [(prepared.tasks, None)], False)
    execution = job.execute(prepared, SEED)
    execution.feed(feed_from(numbers(job.graph)), RATE)
    losses = []
    for _ in range(NUM_LOSSES):
        execution.run()
        losses.append(_loss(execution))
    seconds = clock.seconds([execution.runner.run], lambda count: _ran(execution, count))
    own: dict[str, Any] = {"host_seconds": _host_seconds(execution), "losses": losses, "model": job.model.text}
    own["num_tuned_calls"] = len({way.call for way in job.ways})
    own |= _predicted(job, prepared, execution, seconds)
    own |= {"nbytes": execution.runner.nbytes + execution.runner.workspace_bytes, "remarks": execution.runner.remarks}
    return {"seconds": seconds, "own": own}


@contextmanager
def _told(leads: bool, what: str) -> Iterator[progress.Advance]:
    """In place of a bar: whoever waits for a row sees that it is worked at."""
    yield lambda text, done, total: print(f"{what} {text}: {done} of {total}", flush=True)


def _loss(execution: Execution) -> float | None:
    found = execution.output(execution.graph.loss)
    return None if found is None else float(found)


def _ran(execution: Execution, count: int) -> float:
    """Seconds of so many steps, each begun while the one before it is under way, as training does."""
    runner, begun = execution.runner, perf_counter()
    for left in reversed(range(count)):
        runner.run(meanwhile=runner.begin_ahead if left else None)
    return perf_counter() - begun


def _host_seconds(execution: Execution) -> float:
    """Seconds in which the host puts a step onto the device, which is at the one before where that may be."""
    runner, lasted = execution.runner, []
    for left in reversed(range(NUM_LAUNCHES)):
        begun = perf_counter()
        runner.begin(timed=False)
        runner.advance()
        if left:
            runner.begin_ahead()
        lasted.append(perf_counter() - begun)
        while not runner.done:
            runner.advance()
    return median(lasted)


def _predicted(job: Job, prepared: Prepared, execution: Execution, seconds: float) -> dict[str, float]:
    """What the simulator says of a step before and after its tasks were timed, and how far that is off."""
    timed = [found for _ in range(NUM_LEARNED) if (found := job.gather(execution.step())) is not None]
    before = plan_choice.simulated(prepared, job.cost)
    job.learn(prepared, timed)
    after = plan_choice.simulated(prepared, job.cost)
    return {
        "simulated_seconds": before,
        "predicted_seconds": after,
        "timed_seconds": median(one.seconds for one in timed),
        "prediction_error": abs(after / seconds - 1),
    }

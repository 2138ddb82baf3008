"""Evaluation: a forward pass over held-out samples, under the plan and with the very parameters of training.

It does not know how the model was trained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from castile.launch.data import Dataset
from castile.launch.execution import feed_from
from castile.launch.jobs import Job
from castile.planner.lower import Lowering
from castile.planner.strategy import Strategy
from castile.runtime.backends.base import State


@dataclass(frozen=True)
class HeldOut:
    """How the model does on samples it was not trained on: loss in nats a prediction, share of right predictions."""

    loss: float
    accuracy: float
    num_samples: int


def held_out(job: Job, plan: Strategy, dataset: Dataset, state: State) -> HeldOut | None:
    """Evaluate on all held-out samples; rank 0 gets the figures. None where the model names no output to judge."""
    if not job.graph.outputs:
        return None
    forward = Lowering(job.graph, job.machine, job.lowering.updates, mode="forward")
    prepared = job.prepare(plan, forward)
    execution = job.execute(prepared, 0, state)
    labels, logits = _labels(job), job.graph.outputs[0]
    batch, total = job.graph.batch, dataset.num_held_out
    losses, right = [], []
    for begin in range(0, total, batch):
        arrays = dataset.held_out_batch(begin, batch)
        execution.feed(feed_from(arrays))
        execution.runner.run()
        scores = execution.output(logits)
        if scores is not None:
            taken = min(batch, total - begin)
            loss, hit = _judge(scores[:taken], arrays[labels][:taken])
            losses.append(loss)
            right.append(hit)
    if not losses:
        return None
    return HeldOut(float(np.concatenate(losses).mean()), float(np.concatenate(right).mean()), total)


def _labels(job: Job) -> str:
    """The input that the model's loss compares its output with."""
    loss = next(n for n in job.graph.nodes.values() if job.graph.loss in n.outputs)
    return next(t for t in loss.inputs if t in job.graph.inputs)


def _judge(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores = scores.astype(np.float64)
    chosen = np.take_along_axis(scores, labels[..., None], axis=-1)[..., 0]
    return (logsumexp(scores, axis=-1) - chosen).ravel(), (scores.argmax(axis=-1) == labels).ravel()

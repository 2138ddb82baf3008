"""Evaluation: a second graph uses the parameters where training has them, under the same plan, on held-out samples.

In that graph dropout is off and running statistics stand for those of the batch. It does not know how the model was
trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logsumexp

from castile.launch.data import Dataset
from castile.launch.execution import Execution, feed_from
from castile.launch.jobs import Job
from castile.launch.progress import Advance
from castile.planner.graph import Graph, Node
from castile.planner.lower import Lowering
from castile.planner.strategy import Config, Strategy, check_config
from castile.runtime.backends.base import State


@dataclass(frozen=True)
class HeldOut:
    """How the model does on samples that it was not trained on.

    loss       a prediction's, in nats where it is a cross-entropy, else its squared error
    accuracy   share of right predictions, None where there is no right and wrong
    auc        area under the receiver's operating curve, of models that tell two classes apart
    """

    loss: float
    num_samples: int
    accuracy: float | None = None
    auc: float | None = None


def truth(job: Job, dataset: Dataset) -> str | None:
    """The input with which the model's output is compared on held-out samples.

    None where the model names no output to judge, or there is nothing to compare it with.
    """
    graph = job.evaluation
    return labels_of(graph) if graph.outputs and dataset.num_held_out else None


def held_out(
    job: Job, plan: Strategy, dataset: Dataset, state: State, advance: Advance = lambda *_: None
) -> HeldOut | None:
    """Evaluate on all held-out samples; rank 0 gets the figures. None where there is nothing to judge (`truth`).

    advance   is told, on all ranks, how many of how many samples are done
    """
    graph, labels = job.evaluation, truth(job, dataset)
    if labels is None:
        return None
    lowering = Lowering(graph, job.machine, job.lowering.updates, mode="forward")
    prepared = job.prepare(adapted(plan, job.lowering, graph), lowering)
    execution = job.execute(prepared, 0, state, graph)
    outputs = _scores(graph, dataset, execution, advance)
    pieces = ((scores, arrays[labels][: len(scores)]) for scores, arrays in outputs)
    return judge(graph, pieces, dataset.num_held_out)


def adapted(plan: Strategy, trained: Lowering, graph: Graph) -> Strategy:
    """The plan for a graph that uses a training plan's parameters where they lie.

    Nodes have the Config that they have there; those that are not there, or where it is not legal, are whole on
    processor 0.
    """
    known = trained.configs(plan)
    configs = {name: known.get(name, Config()) for name in graph.nodes}
    configs = {name: config if _legal(graph.nodes[name], config) else Config() for name, config in configs.items()}
    homes = {name: config for name, config in known.items() if name.endswith("/update")}
    return Strategy(configs | homes, num_procs=plan.num_procs)


def _legal(node: Node, config: Config) -> bool:
    try:
        check_config(node, config)
    except ValueError:
        return False
    return True


def _scores(
    graph: Graph, dataset: Dataset, execution: Execution, advance: Advance
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """The model's output for each batch of held-out samples, until the next, and the batch; nothing on ranks that do
    not hold it.
    """
    batch, total = graph.batch, dataset.num_held_out
    for begin in range(0, total, batch):
        arrays = dataset.held_out_batch(begin, batch)
        execution.feed(feed_from(arrays))
        execution.runner.run()
        advance("", min(begin + batch, total), total)
        scores = execution.output(graph.outputs[0])
        if scores is not None:
            yield scores[: total - begin], arrays


def labels_of(graph: Graph) -> str | None:
    """The input that the model's output is compared with; None where there is none.

    It is one that a node reads together with the output, if there are such, and one of which the output does not
    depend: so are labels told from weights of samples, and an autoencoder's images are compared with themselves.
    """
    judged, before = graph.outputs[0], set(graph.outputs)
    for node in reversed(graph.nodes.values()):
        if before & set(node.outputs):
            before.update(node.inputs)
    apart = [name for name in graph.inputs if name not in before]
    readers = [node for node in graph.nodes.values() if judged in node.inputs]
    beside = [name for node in readers for name in node.inputs if name in graph.inputs]
    return next(iter((*(name for name in beside if name in apart), *beside, *apart)), None)


def judge(graph: Graph, pieces: Iterable[tuple[np.ndarray, np.ndarray]], num_samples: int) -> HeldOut | None:
    """What outputs are worth beside the truth, batch by batch; None where there are none.

    Of each batch no more stays than sums, and of models that tell two classes apart a number for each sample: the
    scores of a language model over all that is held out are more than any memory holds.
    """
    is_binary = any(node.op.name == "bce" for node in graph.nodes.values())
    total, right, count = 0.0, 0, 0
    logits: list[tuple[np.ndarray, np.ndarray]] = []
    is_told = is_binary
    for batch, truth in pieces:
        scores = batch.astype(np.float64)
        if truth.dtype.kind in "iu" and scores.ndim == truth.ndim + 1:
            chosen = np.take_along_axis(scores, truth[..., None], axis=-1)[..., 0]
            losses, hits, is_told = logsumexp(scores, axis=-1) - chosen, scores.argmax(axis=-1) == truth, True
        else:
            truth = truth.reshape(scores.shape)
            losses = np.logaddexp(0, scores) - truth * scores if is_binary else np.square(scores - truth)
            hits = (expit(scores) > 0.5) == (truth > 0.5)
            if is_binary:
                logits.append((scores, truth > 0.5))
        total, right, count = total + float(losses.sum()), right + int(hits.sum()), count + losses.size
    if not count:
        return None
    area = auc(*map(np.concatenate, zip(*logits, strict=True))) if logits else None
    return HeldOut(total / count, num_samples, right / count if is_told else None, area)


def auc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """How often a positive sample scores above a negative one, ties counting half (Hanley and McNeil, 1982)."""
    # slow to import, and few models tell two classes apart
    from scipy.stats import rankdata

    ranks, chosen = rankdata(scores.ravel()), positive.ravel()
    num_positive, num_negative = int(chosen.sum()), int((~chosen).sum())
    if not num_positive or not num_negative:
        return None
    return float((ranks[chosen].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))

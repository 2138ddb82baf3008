"""Evaluation: a second graph uses the parameters where training has them, under the same plan, on any samples.

In that graph dropout is off and running statistics stand for those of the batch. It does not know how the model was
trained, nor what becomes of what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from scipy.special import expit, logsumexp

from castile.launch.data import Dataset, Samples, full_batch
from castile.launch.jobs.execution import Execution, Prepared, feed_from
from castile.launch.jobs.jobs import Job
from castile.launch.reports.progress import Advance
from castile.planner.graph import Graph, Node
from castile.planner.known.pipelines import divisors
from castile.planner.lower import Lowering
from castile.planner.op import Tensor
from castile.planner.strategy import Config, Strategy, check_config
from castile.runtime import memory

# Numbers that are judged at once.
_AT_ONCE = 1 << 17


@dataclass(frozen=True)
class HeldOut:
    """How the model does on samples that it was not trained on.

    loss              a prediction's, in nats where it is a cross-entropy, else its squared error
    accuracy          share of right predictions, None where there is no right and wrong
    auc               area under the receiver's operating curve, of models that tell two classes apart; None where some
                      scores are in no order
    num_not_finite    predictions whose loss is no finite number: they are not right
    num_predictions   how many were judged, None where that is one of each sample
    perplexity        e to the loss, of models that tell the classes of a sequence's places, as of words
    """

    loss: float
    num_samples: int
    accuracy: float | None = None
    auc: float | None = None
    num_not_finite: int = 0
    num_predictions: int | None = None
    perplexity: float | None = None


def truth(job: Job, samples: Samples) -> str | None:
    """The input with which the model's output is compared on these samples.

    None where the model names no output to judge, or there is nothing to compare it with.
    """
    graph = job.evaluation
    name = labels_of(graph) if graph.outputs and len(samples) else None
    return name if name in samples.shapes else None


@dataclass(frozen=True, eq=False)
class Passing:
    """A forward pass over so many samples as its graph has."""

    graph: Graph
    prepared: Prepared


def passing(job: Job, plan: Strategy, trained: Prepared) -> Passing:
    """What a plan that the model is trained with is in a forward pass over held-out samples; all ranks call it.

    It goes over a batch, or over the largest equal piece of one for which there is memory: steps lend it what they use
    while they run. Raises ValueError where there is for none.
    """
    refused, room = list[ValueError](), job.machine.capacity - trained.packing.peak_bytes
    for graph in _pieces(job):
        try:
            prepared = job.prepare(adapted(plan, job.lowering, graph), forward(job, graph))
        except ValueError as error:
            refused.append(error)
            continue
        if (beside(trained, prepared) <= room).all():
            return Passing(graph, prepared)
        refused.append(ValueError("held-out samples take more memory than steps leave: give more to accumulate"))
    raise refused[-1]


def _pieces(job: Job) -> Iterator[Graph]:
    """The graph for evaluation, of whole batches, and of pieces as far as the model comes in these."""
    yield job.evaluation
    for number in divisors(job.graph.batch)[1:]:
        with suppress(ValueError):
            yield job.model.graph(job.graph.batch // number, job.graph.dtype, training=False)


def beside(trained: Prepared, prepared: Prepared) -> np.ndarray:
    """int64[P]: at most so many bytes more a forward pass takes than the steps that lend it their arenas."""
    lent, arena = (p.packing.peak_bytes - memory.lasting(p.tasks) for p in (trained, prepared))
    lasting = memory.lasting(prepared.tasks, but="carried")
    return np.where(arena > lent, arena, 0) + np.where(arena + lasting > lent, lasting, 0)


def held_out(
    job: Job, passing: Callable[[], Passing], dataset: Dataset, trained: Execution,
    advance: Advance = lambda *_: None, is_over: Callable[[], bool] = lambda: False,
) -> HeldOut | None:  # fmt: skip
    """Evaluate on all held-out samples; rank 0 gets the figures. None where there is nothing to judge (`truth`).

    passing   what `passing` gives for the plan that the model is trained with
    trained   what runs its steps, none of which is under way
    advance   is told, on all ranks, how many of how many samples are done
    is_over   whether to end before the next batch, asked on all ranks; figures are then of those before, or None
    """
    labels = truth(job, dataset.held_out)
    if labels is None:
        return None
    way = passing()
    # What a pass is given and makes lies where the next step writes.
    execution = job.execute(way.prepared, 0, {**trained.state}, way.graph, trained.runner.arenas)
    told = says(execution, dataset.held_out, [labels], advance, is_over)
    pieces = ((outputs[execution.graph.outputs[0]], given[labels]) for outputs, given in told)
    return judge(execution.graph, pieces, dataset.num_held_out)


def forward(job: Job, graph: Graph, served: bool = False) -> Lowering:
    """How plans of a graph for evaluation are lowered: over the parameters of training, or parameters that are served
    alone, which lie as they are used.
    """
    return Lowering(graph, job.machine, replace(job.lowering.updates, served=served), mode="forward")


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


Arrays = dict[str, np.ndarray]


def says(
    execution: Execution, samples: Samples, besides: Collection[str] = (), advance: Advance = lambda *_: None,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Arrays, Arrays]]:  # fmt: skip
    """What a forward pass says of each batch of samples: its outputs, which hold until the next, and those inputs
    besides. Nothing on ranks that do not hold them; all ranks go through all of it.

    advance   is told, on all ranks, how many of how many samples are done
    is_over   whether to end before the next batch, asked on all ranks
    """
    graph, total = execution.graph, len(samples)
    fed = {name for name, _ in execution.inputs}
    for begin in range(0, total, graph.batch):
        if is_over():
            break
        # labels are looked at where outputs are
        wanted = fed.union(besides) if execution.comm.rank == 0 else fed
        arrays = full_batch(samples, begin, graph.batch, wanted)
        execution.feed(feed_from(arrays))
        execution.run()
        count = min(graph.batch, total - begin)
        advance("", begin + count, total)
        outputs = {name: execution.output(name) for name in graph.outputs}
        if held := {name: array[:count] for name, array in outputs.items() if array is not None}:
            yield held, {name: _as_taken(graph.tensors[name], arrays[name][:count]) for name in besides}


def _as_taken(tensor: Tensor, rows: np.ndarray) -> np.ndarray:
    """An input's rows as numbers of the kind that the graph takes: 3 may be a class, or how much there is."""
    is_class = np.dtype(tensor.dtype).kind in "iu"
    return rows if is_class or rows.dtype.kind == "f" else rows.astype(np.float64)


def needed(graph: Graph) -> set[str]:
    """The inputs that the graph's outputs depend on."""
    before = _before(graph)
    return {name for name in graph.inputs if name in before}


def _before(graph: Graph) -> set[str]:
    """Tensors that the graph's outputs depend on, and these."""
    found = set(graph.outputs)
    for node in reversed(graph.nodes.values()):
        if found & set(node.outputs):
            found.update(node.inputs)
    return found


def labels_of(graph: Graph) -> str | None:
    """The input that the model's output is compared with; None where there is none.

    It is one that a node reads together with the output, if there are such, and one of which the output does not
    depend: so are labels told from weights of samples, and an autoencoder's images are compared with themselves. Its
    shape is that of the output, or without what tells classes apart, and some node reads it: what else there is, or
    what another output is taught, is not what this one says.
    """
    judged, before = _judged(graph).name, _before(graph)
    read = {name for node in graph.nodes.values() for name in node.inputs}
    apart = [name for name in graph.inputs if name in read and name not in before]
    readers = [node for node in graph.nodes.values() if judged in node.inputs]
    beside = [name for node in readers for name in node.inputs if name in graph.inputs]
    found = (*(name for name in beside if name in apart), *beside, *apart)
    return next((name for name in found if _fits(graph.tensors[judged], graph.tensors[name])), None)


def _judged(graph: Graph) -> Tensor:
    """The model's output as its labels are compared with it: classes of images are told apart by the last dim there."""
    turned = _turned(graph)
    return graph.tensors[turned.name if turned else graph.outputs[0]]


def _turned(graph: Graph) -> Node | None:
    """What makes of the model's output that of which a cross-entropy is taken, where it moves dims alone."""
    compared = {node.inputs[0] for node in graph.nodes.values() if node.op.name == "cross_entropy"}
    moved = (node for node in graph.nodes.values() if node.op.name == "transpose" and node.name in compared)
    return next((node for node in moved if node.inputs[0] in graph.outputs[:1]), None)


def _classes_last(graph: Graph, outputs: np.ndarray) -> np.ndarray:
    """Outputs as `_judged` has them."""
    if (turned := _turned(graph)) is None:
        return outputs
    (before,), (after,) = turned.alignment.operands, turned.alignment.results
    return outputs.transpose([before.dims.index(dim) for dim in after.dims])


def _fits(output: Tensor, truth: Tensor) -> bool:
    """Whether `judge` can compare them."""
    if np.dtype(truth.dtype).kind not in "iu" or len(output.shape) <= len(truth.shape):
        return prod(output.shape) == prod(truth.shape)
    if len(output.shape) == len(truth.shape) + 1:
        return output.shape[:-1] == truth.shape
    return prod(output.shape) % prod(truth.shape) == 0


# What is no finite number is counted and told, and not warned of by what met it.
@np.errstate(over="ignore", invalid="ignore")
def judge(
    graph: Graph, pieces: Iterable[tuple[np.ndarray, np.ndarray]], num_samples: int,
    tell: Callable[[np.ndarray], None] | None = None,
) -> HeldOut | None:  # fmt: skip
    """What outputs are worth beside the truth, batch by batch; None where there are none. `tell` is given the loss of
    each prediction of a batch, in the shape that `losses_of` says.

    Judging takes several numbers in float64 for one of a batch, and the scores of a vocabulary are much of a step's
    memory, so it goes block by block. Of each batch no more stays than sums, and of models that tell two classes apart
    a number for each sample: the scores of a language model over all that is held out are more than any memory holds.
    Raises ValueError for a label that is no class.
    """
    is_binary = any(node.op.name == "bce" for node in graph.nodes.values())
    total, right, count, unreal = 0.0, 0, 0, 0
    logits: list[tuple[np.ndarray, np.ndarray]] = []
    is_told, is_sequence = is_binary, False
    for batch, truth in pieces:
        each = list[np.ndarray]()
        scores = _classes_last(graph, batch)
        if truth.dtype.kind in "iu" and scores.size % max(truth.size, 1) == 0 and scores.ndim > truth.ndim + 1:
            scores = scores.reshape(*truth.shape, -1)
        classes = scores.shape[-1] if truth.dtype.kind in "iu" and scores.ndim == truth.ndim + 1 else 0
        if classes and (outside := truth[(truth < 0) | (truth >= classes)]).size:
            raise ValueError(
                f"label {outside[0]} is none of the {classes} classes that the output "
                f"{graph.outputs[0]!r} tells apart: name first in g.outputs what labels are compared with"
            )
        is_told, is_sequence = is_told or classes > 0, classes > 0 and truth.ndim == 2
        for some, there in _blocks(scores, truth if classes else truth.reshape(scores.shape), classes):
            some = _logits(graph, some.astype(np.float64))
            losses, hits = _told(some, there, classes > 0, is_binary)
            if is_binary and not classes:
                logits.append((some, there > 0.5))
            # not scores: one that is infinitely low may be a mask's
            real = np.isfinite(losses)
            total, right = total + float(losses.sum()), right + int((hits & real).sum())
            count, unreal = count + losses.size, unreal + int((~real).sum())
            each += [losses.ravel()] if tell is not None else []
        if tell is not None:
            tell(np.concatenate(each).reshape(truth.shape if classes else scores.shape))
    if not count:
        return None
    area = auc(*map(np.concatenate, zip(*logits, strict=True))) if logits else None
    many = count if count != num_samples else None
    accuracy, perplexity = right / count if is_told else None, float(np.exp(total / count)) if is_sequence else None
    return HeldOut(total / count, num_samples, accuracy, area, unreal, many, perplexity)


def losses_of(graph: Graph, labels: str) -> tuple[int, ...]:
    """The shape of the losses of one sample that `judge` tells: of the labels of classes, else of what is said."""
    said, truth = _judged(graph), graph.tensors[labels]
    are_classes = np.dtype(truth.dtype).kind in "iu" and len(said.shape) > len(truth.shape)
    return (truth if are_classes else said).shape[1:]


def _told(scores: np.ndarray, truth: np.ndarray, are_classes: bool, is_binary: bool) -> tuple[np.ndarray, np.ndarray]:
    """Of each row of scores of classes, or of each number without such, its loss and whether it is right."""
    if are_classes:
        of_truth = np.take_along_axis(scores, truth[:, None], axis=-1)[:, 0]
        return logsumexp(scores, axis=-1) - of_truth, scores.argmax(axis=-1) == truth
    losses = np.logaddexp(0, scores) - truth * scores if is_binary else np.square(scores - truth)
    return losses, (expit(scores) > 0.5) == (truth > 0.5)


def _blocks(scores: np.ndarray, truth: np.ndarray, classes: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of so many classes, or single numbers without such, and what is compared with each: few of them at once."""
    row = (classes,) if classes else ()
    for samples in _cut(len(scores), scores.size // max(1, len(scores))):
        some, there = scores[samples].reshape(-1, *row), truth[samples].reshape(-1)
        for rows in _cut(len(there), max(1, classes)):
            yield some[rows], there[rows]


def _cut(length: int, size: int) -> Iterator[slice]:
    """A dim in pieces of few numbers, of which each of its places has `size`."""
    step = max(1, _AT_ONCE // max(1, size))
    return (slice(first, first + step) for first in range(0, length, step))


def _logits(graph: Graph, outputs: np.ndarray) -> np.ndarray:
    """What became the model's outputs, where these are probabilities."""
    ends = {node.name: node.op.name for node in graph.nodes.values()}
    last = next(iter(graph.outputs), "")
    while ends.get(last) == "reshape":
        last = graph.nodes[last].inputs[0]
    if ends.get(last) == "softmax":
        return np.log(np.maximum(outputs, np.finfo(np.float32).tiny))
    if ends.get(last) == "sigmoid":
        # what came out as 0 or 1 was near it
        outputs = np.clip(outputs, np.finfo(np.float32).tiny, 1 - np.finfo(np.float64).epsneg)
        return np.log(outputs) - np.log1p(-outputs)
    return outputs


def auc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """How often a positive sample scores above a negative one, ties counting half (Hanley and McNeil, 1982).

    None where there are not both, or a score is NaN, which is in no order.
    """
    # slow to import, and few models tell two classes apart
    from scipy.stats import rankdata

    ranks, chosen = rankdata(scores.ravel()), positive.ravel()
    num_positive, num_negative = int(chosen.sum()), int((~chosen).sum())
    if not num_positive or not num_negative or np.isnan(ranks).any():
        return None
    return float((ranks[chosen].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))

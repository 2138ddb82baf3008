"""Scores a network's outputs against labels: losses, accuracy, AUC, batch by batch.

It does not know where outputs come from, nor how the figures are used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
from scipy.special import expit

from castile.launch.arrays import defined
from castile.launch.training.loss_comparison import NO_TRANSFORMS, loss_transforms, scores_of
from castile.planner.graph import Graph, Node
from castile.planner.op import Tensor

# Numbers that are judged at once.
_AT_ONCE = 1 << 17
# Of so many classes each is counted by itself.
MOST_CLASSES = 100
# What is compared is made of at most so many inputs and outputs.
MOST_SOURCES = 4
# Operators that give an output weights, or leave some of it out.
WEIGHING = ("mul", "div", "masked")


@dataclass(frozen=True)
class HeldOut:
    """How the model does on samples that it was not trained on.

    loss              mean over predictions, in nats for a cross-entropy, else the squared error
    accuracy          share of right predictions, None where there is no right and wrong
    auc               area under the ROC curve, of binary classifiers; None where some scores are NaN
    num_not_finite    predictions whose loss is not finite: they count as wrong
    num_predictions   how many were scored, None where that is one for each sample
    perplexity        exp(loss), of models that classify the positions of a sequence, such as words
    confusion         confusion[c][s] predictions of class c were classified as s, for at most MOST_CLASSES classes;
                      else None
    others            the same of further outputs that a loss compares with labels of their own, by name
    """

    loss: float
    num_samples: int
    accuracy: float | None = None
    auc: float | None = None
    num_not_finite: int = 0
    num_predictions: int | None = None
    perplexity: float | None = None
    confusion: tuple[tuple[int, ...], ...] | None = None
    others: Mapping[str, HeldOut] = field(default_factory=dict)


def truths(graph: Graph, there: Iterable[str]) -> dict[str, str]:
    """The input with which each output is compared, of those inputs that are there: for the first as `labels_of` says,
    for others where nodes compare both. None where the first has none.
    """
    first = labels_of(graph) if graph.outputs else None
    found = {graph.outputs[0]: first} if first is not None and first in there else {}
    for output in graph.outputs[1:] if found else ():
        apart = [name for name in _compared_with(graph, output) if name not in (*ancestors(graph), *found.values())]
        label = _comparable(graph, output, apart)
        found |= {output: label} if label is not None and label in there else {}
    return found


def ancestors(graph: Graph) -> set[str]:
    """The tensors that the graph's outputs depend on, and the outputs."""
    found = set(graph.outputs)
    for node in reversed(graph.nodes.values()):
        if found & set(node.outputs):
            found.update(node.inputs)
    return found


def labels_of(graph: Graph) -> str | None:
    """The input that the model's output is compared with; None where there is none.

    It is preferably one that nodes compare with the output, and one that the output does not depend on: so labels are
    distinguished from weights of samples, while an autoencoder's images are compared with themselves. Its shape is that
    of the output, or lacks the dim of classes, and some node reads it. There is none where nodes compare the output
    with an input at other positions, as words with those that follow.
    """
    needed = ancestors(graph)
    read = {name for node in graph.nodes.values() for name in node.inputs}
    apart = [name for name in graph.inputs if name in read and name not in needed]
    beside = _compared_with(graph, graph.outputs[0])
    if not beside and _compared_with(graph, graph.outputs[0], moved=True):
        return None
    found = (*(name for name in beside if name in apart), *beside, *apart)
    return _comparable(graph, graph.outputs[0], found)


def _comparable(graph: Graph, output: str, names: Iterable[str]) -> str | None:
    """The first of some inputs that an output can be compared with; None where there is none, or where a loss
    transforms it otherwise than number by number.
    """
    judged = _scored_tensor(graph, output)
    found = next((name for name in names if _can_score(judged, graph.tensors[name])), None)
    if found is None or prod(judged.shape) != prod(graph.tensors[found].shape) or "bce" in _losses_with(graph, found):
        return found
    return found if loss_transforms(graph, judged.name, output, found) is not None else None


def _compared_with(graph: Graph, output: str, moved: bool = False) -> list[str]:
    """The inputs that a loss holds against an output, or against the scores of which it makes shares."""
    judged = (_scored_tensor(graph, output).name, *scores_of(graph.producers, output))
    return [name for one in judged for name in _held_against(graph, one, moved)]


def _held_against(graph: Graph, judged: str, moved: bool) -> list[str]:
    """The inputs that nodes compare with a tensor: those that read two things, made alike but for the tensor in the
    one and the input in the other, as where a loss weighs classes or masks samples. What a tensor is only multiplied by
    comes last: that may be its weight.

    moved   also at other places than the tensor's own
    """
    found: dict[bool, list[str]] = {False: [], True: []}
    # Of what each tensor is made, beside states; None of what is of too much to be what is compared.
    sources: dict[str, set[str] | None] = {name: {name} for name in (*graph.inputs, judged)}
    sources |= {param.name: None for param in graph.params}
    for node in graph.nodes.values():
        of = [sources.get(name, set()) for name in node.inputs]
        known = [one for one in of if one is not None]
        for one, other in itertools.permutations(known, 2):
            if one - other == {judged} and len(other - one) == 1 and (one & other).issubset(graph.inputs):
                found[node.op.name in WEIGHING] += (other - one).intersection(graph.inputs)
        made = set().union(*known)
        is_much = len(known) < len(of) or len(made) > MOST_SOURCES or not (moved or _keeps_places(node))
        sources |= {name: None if is_much else made for name in node.outputs if name != judged}
    return found[False] + found[True]


def _keeps_places(node: Node) -> bool:
    """Whether what a node gives at a place comes from the same place, as a slice's does not. Classes are told apart by
    the last dim of an output: behind moved dims by another.
    """
    a = node.alignment
    read = {axis for operand in a.operands for axis in operand.axes if a.extents[axis] > 1}
    return node.op.name != "transpose" and read.issubset(a.results[0].axes)


def _scored_tensor(graph: Graph, output: str) -> Tensor:
    """An output as its labels are compared with it: classes of images are the last dim there."""
    turned = _moves_dims(graph, output)
    return graph.tensors[turned.name if turned else output]


def _moves_dims(graph: Graph, output: str) -> Node | None:
    """The node between an output and the scores of a cross-entropy, where it only permutes dims."""
    compared = {node.inputs[0] for node in graph.nodes.values() if node.op.name == "cross_entropy"}
    moved = (node for node in graph.nodes.values() if node.op.name == "transpose" and node.name in compared)
    return next((node for node in moved if node.inputs[0] == output), None)


def _can_score(output: Tensor, truth: Tensor) -> bool:
    """Whether `Scorer` can compare them."""
    if np.dtype(truth.dtype).kind not in "iu" or len(output.shape) <= len(truth.shape):
        return prod(output.shape) == prod(truth.shape)
    if len(output.shape) == len(truth.shape) + 1:
        return output.shape[:-1] == truth.shape
    return prod(output.shape) % prod(truth.shape) == 0


def losses_of(graph: Graph, labels: str) -> tuple[int, ...]:
    """The shape of the losses of one sample's first output: that of class labels, else of the output."""
    said, truth = _scored_tensor(graph, graph.outputs[0]), graph.tensors[labels]
    are_classes = np.dtype(truth.dtype).kind in "iu" and len(said.shape) > len(truth.shape)
    return (truth if are_classes else said).shape[1:]


@dataclass
class Scorer:
    """Scores an output against labels, batch by batch.

    labels   the input that it is compared with, None where any loss may say how

    Numbers are compared as a loss compares them, which may do so with their logarithms.

    It works block by block, as scoring takes several float64 numbers for each one of a batch, and the scores of a
    vocabulary are much of a step's memory. Only sums are kept of each batch, and for binary classifiers a number for
    each sample: the scores of a language model over all held-out samples exceed any memory.
    """

    graph: Graph
    output: str
    labels: str | None

    def __post_init__(self) -> None:
        self._is_binary = "bce" in _losses_with(self.graph, self.labels)
        self._transforms = NO_TRANSFORMS
        if self.labels is not None:
            judged = _scored_tensor(self.graph, self.output).name
            self._transforms = loss_transforms(self.graph, judged, self.output, self.labels) or NO_TRANSFORMS
        self._counts_right, self._is_sequence = self._is_binary, False
        self._total, self._right, self._count, self._unreal = 0.0, 0, 0, 0
        self._logits = list[tuple[np.ndarray, np.ndarray]]()
        self._confusion: np.ndarray | None = None

    # What is no finite number is counted and told, and not warned of by what met it.
    @np.errstate(over="ignore", invalid="ignore")
    def add(self, batch: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """Score a batch of outputs; returns the loss of each prediction, in the shape of `losses_of`.

        Raises ValueError for a label that is no class.
        """
        scores = self._classes_last(batch)
        if truth.dtype.kind in "iu" and scores.size % max(truth.size, 1) == 0 and scores.ndim > truth.ndim + 1:
            scores = scores.reshape(*truth.shape, -1)
        classes = scores.shape[-1] if truth.dtype.kind in "iu" and scores.ndim == truth.ndim + 1 else 0
        if classes and (outside := truth[(truth < 0) | (truth >= classes)]).size:
            raise ValueError(
                f"label {outside[0]} is none of the {classes} classes that the output {self.output!r} tells apart: "
                "name first in g.outputs what labels are compared with"
            )
        self._counts_right |= classes > 0
        self._is_sequence = classes > 0 and truth.ndim == 2
        shape, losses = truth.shape if classes else scores.shape, [np.zeros(0)]
        for some, there in _blocks(scores, truth if classes else truth.reshape(scores.shape), classes):
            losses.append(self._block(some, there, classes > 0).ravel())
        return np.concatenate(losses).reshape(shape)

    def _block(self, scores: np.ndarray, truth: np.ndarray, are_classes: bool) -> np.ndarray:
        """Count some predictions; returns their losses."""
        some = scores.astype(np.float64)
        if are_classes or self._is_binary:
            some = _logits(self.graph, self.output, some)
        else:
            of_output, of_labels = self._transforms
            some = defined.through(of_output, some)
            truth = defined.through(of_labels, truth.astype(np.float64))
        losses, hits = _losses_and_hits(some, truth, are_classes, self._is_binary)
        if self._is_binary and not are_classes:
            self._logits.append((some, truth > 0.5))
        # not scores: one that is infinitely low may be a mask's
        real = np.isfinite(losses)
        classes = some.shape[-1] if are_classes else 2
        if (are_classes or self._is_binary) and classes <= MOST_CLASSES:
            said = some.argmax(axis=-1) if are_classes else expit(some) > 0.5
            of_class = truth if are_classes else truth > 0.5
            pairs = np.bincount((of_class * classes + said)[real], minlength=classes**2).reshape(classes, classes)
            self._confusion = pairs if self._confusion is None else self._confusion + pairs
        self._total += float(losses.sum())
        self._right += int((hits & real).sum())
        self._count += losses.size
        self._unreal += int((~real).sum())
        return losses

    @np.errstate(over="ignore", invalid="ignore")
    def figures(self, num_samples: int) -> HeldOut | None:
        """The figures of all batches together; None where there were none."""
        if not self._count:
            return None
        loss = self._total / self._count
        return HeldOut(
            loss, num_samples, self._right / self._count if self._counts_right else None,
            auc(*map(np.concatenate, zip(*self._logits, strict=True))) if self._logits else None, self._unreal,
            self._count if self._count != num_samples else None, float(np.exp(loss)) if self._is_sequence else None,
            tuple(map(tuple, self._confusion.tolist())) if self._confusion is not None else None,
        )  # fmt: skip

    def _classes_last(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs as `_scored_tensor` has them."""
        if (turned := _moves_dims(self.graph, self.output)) is None:
            return outputs
        (before,), (after,) = turned.alignment.operands, turned.alignment.results
        return outputs.transpose([before.dims.index(dim) for dim in after.dims])


def _losses_with(graph: Graph, labels: str | None) -> set[str]:
    """The operators that labels reach, also through others; all operators where no labels are named."""
    if labels is None:
        return {node.op.name for node in graph.nodes.values()}
    found, made = set[str](), {labels}
    for node in graph.nodes.values():
        if made.intersection(node.inputs):
            found.add(node.op.name)
            made.update(node.outputs)
    return found


def _losses_and_hits(
    scores: np.ndarray, truth: np.ndarray, are_classes: bool, is_binary: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The loss of each row of class scores, or of each number, and whether it is right."""
    if are_classes:
        of_truth = np.take_along_axis(scores, truth[:, None], axis=-1)[:, 0]
        return _log_of_sums(scores) - of_truth, scores.argmax(axis=-1) == truth
    losses = np.logaddexp(0, scores) - truth * scores if is_binary else np.square(scores - truth)
    return losses, (expit(scores) > 0.5) == (truth > 0.5)


def _log_of_sums(scores: np.ndarray) -> np.ndarray:
    """Log-sum-exp of each row; SciPy's takes longer than everything else here."""
    most = scores.max(axis=-1, keepdims=True)
    # beside what is infinite, or no number, nothing counts
    most[~np.isfinite(most)] = 0.0
    with np.errstate(divide="ignore", over="ignore"):
        return np.log(np.exp(scores - most).sum(axis=-1)) + most[..., 0]


def _blocks(scores: np.ndarray, truth: np.ndarray, classes: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of `classes` scores, or single numbers, and what each is compared with, a few at a time."""
    row = (classes,) if classes else ()
    for samples in _cut(len(scores), scores.size // max(1, len(scores))):
        some, there = scores[samples].reshape(-1, *row), truth[samples].reshape(-1)
        for rows in _cut(len(there), max(1, classes)):
            yield some[rows], there[rows]


def _cut(length: int, size: int) -> Iterator[slice]:
    """A dim in pieces of few numbers, where each position has `size`."""
    step = max(1, _AT_ONCE // max(1, size))
    return (slice(first, first + step) for first in range(0, length, step))


def _logits(graph: Graph, last: str, outputs: np.ndarray) -> np.ndarray:
    """The logits behind an output that is probabilities."""
    ends = {node.name: node.op.name for node in graph.nodes.values()}
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

    None where there are not both, or a score is NaN.
    """
    # slow to import, and few models tell two classes apart
    from scipy.stats import rankdata

    ranks, chosen = rankdata(scores.ravel()), positive.ravel()
    num_positive, num_negative = int(chosen.sum()), int((~chosen).sum())
    if not num_positive or not num_negative or np.isnan(ranks).any():
        return None
    return float((ranks[chosen].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))

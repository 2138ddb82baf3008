"""Whole numbers among samples: labels, tokens and categories stand for classes and rows, of which there are so many.

Samples are looked through before anything is measured; what comes later than that is told by the step that meets it.
It does not know where samples come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from types import SimpleNamespace

import numpy as np

from castile.launch.data import Dataset, Samples, Taken
from castile.launch.processes.ranks import UserError
from castile.planner.graph import Graph, Node
from castile.planner.op import PASSES
from castile.runtime.region import slices

# Of so many batches whole numbers are looked at before a run: a few hundredths of a second.
MOST_BATCHES = 1000
# More than anything has numbers for.
UNKNOWN = 2**62


def taken(graph: Graph) -> dict[str, Taken]:
    """What a graph takes of each of its inputs."""
    return {name: _taken(graph, name) for name in graph.inputs}


def _taken(graph: Graph, name: str) -> Taken:
    tensor = graph.tensors[name]
    whole = np.issubdtype(tensor.dtype, np.integer)
    return Taken(tensor.shape[1:], whole, _below(graph, name) if whole else None)


def _below(graph: Graph, name: str) -> np.ndarray | None:
    """Below what each whole number of a sample is to be, as `Taken` has it.

    Each is followed to what it numbers by giving every place of a sample a number of its own.
    """
    tensor, size = graph.tensors[name], prod(graph.tensors[name].shape[1:])
    places = np.arange(size, dtype=tensor.dtype).reshape(tensor.shape[1:])
    below = np.full(size, UNKNOWN)
    for _, _, met, length in _numbered(_nodes(graph, [name]), {name: np.broadcast_to(places, tensor.shape)}):
        # What was computed of them need not be places any more.
        where = met[(met >= 0) & (met < size)]
        below[where] = np.minimum(below[where], length)
    return None if (below == UNKNOWN).any() else below.reshape(tensor.shape[1:])


def check(graph: Graph, dataset: Dataset) -> None:
    """Raises UserError, with what the model takes, for a sample with a number that stands for nothing there.

    Looked at are the first samples for training and of those held out; of samples that come one after another, the
    first batch.
    """
    known = dataset.shapes
    asked = [n for n in graph.inputs if n in known and np.issubdtype(graph.tensors[n].dtype, np.integer)]
    nodes = _nodes(graph, asked)
    if not any(node.op.numbering for node in nodes):
        return
    parts: list[tuple[str, Samples]] = [("", dataset.train), ("held-out ", dataset.held_out)]
    for which, samples in parts:
        num_batches = -(-len(samples) // graph.batch) if dataset.shuffled or which else 1
        for n in range(min(num_batches, MOST_BATCHES)):
            numbers = np.arange(n * graph.batch, (n + 1) * graph.batch)
            if dataset.shuffled or which:
                numbers = np.minimum(numbers, len(samples) - 1)
            try:
                look(nodes, samples.take(dict.fromkeys(asked, numbers)))
            except OutOfPlace as error:
                told = f"data set {dataset.name}: {which}samples {numbers[0] + 1} to {numbers[-1] + 1}"
                raise UserError(f"{told} have {error}: number them so, or let the model have more") from None


class OutOfPlace(ValueError):
    """A number stands for nothing; the words go on after "have"."""


def look(nodes: list[Node], arrays: Mapping[str, np.ndarray]) -> None:
    """Raises OutOfPlace where an operator is given a number of a batch that stands for nothing."""
    for node, operand, met, length in _numbered(nodes, arrays):
        if met.size and not 0 <= met.min() <= met.max() < length:
            wrong = int(met.min() if met.min() < 0 else met.max())
            raise OutOfPlace(f"{wrong} in {node.inputs[operand]!r}, where {node.told} takes 0 to {length - 1}")


def _numbered(nodes: list[Node], arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[Node, int, np.ndarray, int]]:
    """What numbers something, computed from a batch: of which node, by which operand, and of how many."""
    # commands that run nothing do without
    from castile.kernels.table import definitions

    known, kernels = dict(arrays), SimpleNamespace(**definitions())
    for node in nodes:
        whole = node.whole()
        given = [known.get(name) for name in node.inputs]
        operands = [None if one is None else one[slices(whole.reads(n))] for n, one in enumerate(given)]
        for operand, axes in node.op.numbering:
            found, length = operands[operand], prod(map(whole.extent, axes.split()))
            if found is not None:
                yield node, operand, found, length
        if all(one is not None for one in operands):
            asked = {"at": whole} if "at" in node.op.asks("F") else {}
            made = getattr(node.op, PASSES["F"])(kernels, *operands, **asked)
            known.update(zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True))


def _nodes(graph: Graph, asked: list[str]) -> list[Node]:
    """Those that whole numbers of the inputs reach: nodes that number something by them, and that hand them on."""
    known, found = set(asked), []
    for node in graph.nodes.values():
        hands_on = known.issuperset(node.inputs) and all(
            np.issubdtype(graph.tensors[name].dtype, np.integer) for name in node.outputs
        )
        if hands_on or any(node.inputs[operand] in known for operand, _ in node.op.numbering):
            found.append(node)
        if hands_on:
            known.update(node.outputs)
    return found

"""Checks the numbers in samples: labels, tokens and categories must number existing classes and rows, and training
numbers must be finite.

Samples are checked before anything is measured; later ones by the step that meets them. It does not know where samples
come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from castile.launch.data import Dataset, InputSpec, Samples, outside, rows_of
from castile.launch.processes.ranks import UserError
from castile.planner.graph import Graph, Node
from castile.runtime.region import slices

# Of so many batches whole numbers are looked at before a run: a few hundredths of a second.
MOST_BATCHES = 1000
# Of numbers that are not whole so many bytes are: a few hundredths of a second, too.
MOST_BYTES = 2**26
MEND = "mend such samples or leave them out"
WITHIN = "number two classes 0 and 1, as positive= of a csv does, or name the share of one"
NONE_IGNORED = (
    "no number is ignored, as -100 is elsewhere: leave such samples out, or number such places as a class or token of "
    "their own"
)
# More than anything has numbers for.
UNKNOWN = 2**62
# Operators that leave each number as it is.
MOVED = ("reshape", "transpose")


def taken(graph: Graph) -> dict[str, InputSpec]:
    """What a graph takes for each of its inputs."""
    shares = _shares(graph)
    return {name: _input_spec(graph, name, name in shares) for name in graph.inputs}


def _input_spec(graph: Graph, name: str, is_share: bool) -> InputSpec:
    tensor = graph.tensors[name]
    whole = np.issubdtype(tensor.dtype, np.integer)
    return InputSpec(tensor.shape[1:], whole, _below(graph, name) if whole else None, is_share)


def _shares(graph: Graph) -> dict[str, Node]:
    """The inputs whose numbers have to lie from 0 to 1, and the node that requires it."""
    found = {}
    for node in graph.nodes.values():
        for name in (node.inputs[operand] for operand in node.op.shares):
            while (made := graph.nodes.get(name)) is not None and made.op.name in MOVED:
                name = made.inputs[0]
            if name in graph.inputs:
                found[name] = node
    return found


def _below(graph: Graph, name: str) -> np.ndarray | None:
    """The exclusive upper bound of each integer of a sample, as `InputSpec` has it.

    Each is traced to what it indexes by giving every position of a sample a distinct number.
    """
    tensor, size = graph.tensors[name], prod(graph.tensors[name].shape[1:])
    places = np.arange(size).reshape(tensor.shape[1:])
    below = np.full(size, UNKNOWN)
    for _, _, met, length in _numbered(_nodes(graph, [name]), {name: np.broadcast_to(places, tensor.shape)}):
        # What was computed of them need not be places any more.
        where = met[(met >= 0) & (met < size)]
        below[where] = np.minimum(below[where], length)
    return None if (below == UNKNOWN).any() else below.reshape(tensor.shape[1:])


def check(graph: Graph, dataset: Dataset, trained: bool = True) -> None:
    """Raises UserError, with what the model takes, for a sample with an index out of range, with a number outside 0 to
    1 where the model takes shares, or, if it is trained on, with a number that is not finite.

    It looks at the first samples for training and of those held out; of sequential samples at the first batch.
    """
    known = [name for name in graph.inputs if name in dataset.shapes]
    whole = [name for name in known if np.issubdtype(graph.tensors[name].dtype, np.integer)]
    real = [name for name in known if trained and name not in whole]
    shares = {name: node for name, node in _shares(graph).items() if name in known and name not in whole}
    looked_at = {*real, *shares}
    nodes, size = _nodes(graph, whole), sum(4 * prod(graph.tensors[name].shape) for name in looked_at)
    most = MOST_BYTES // max(size, 1)
    parts: list[tuple[str, Samples]] = [("", dataset.train), ("held-out ", dataset.held_out)]
    for which, samples in parts:
        any_order = bool(which) or dataset.shuffled
        for n in range(min(-(-len(samples) // graph.batch), MOST_BATCHES) if any_order else 1):
            numbers = np.arange(n * graph.batch, (n + 1) * graph.batch)
            if any_order:
                numbers = np.minimum(numbers, len(samples) - 1)
            wanted = [name for name in (*whole, *(looked_at if n <= most else ())) if name in samples.shapes]
            arrays = samples.take(dict.fromkeys(wanted, numbers))
            try:
                _fit(graph, arrays)
                check_batch(nodes, arrays)
            except OutOfPlace as error:
                begun = f"data set {dataset.name}: {which}samples {numbers[0] + 1} to {numbers[-1] + 1}"
                raise UserError(f"{begun} have {error}: {error.mend}") from None
            place = f"data set {dataset.name}: {which}sample {{}}, counted from 0, has {{}}"
            row = rows_of(samples)[numbers % len(samples)]
            if found := first_odd({name: arrays[name] for name in real if name in arrays}, (np.isnan,)):
                raise UserError(f"{place.format(row[found.row], found.words)}: {MEND}")
            for name, node in shares.items():
                if name in arrays and (found := _first(name, arrays[name], lambda rows: (rows < 0) | (rows > 1))):
                    words = f"{found.words}, where {node.full_name} takes 0 to 1"
                    raise UserError(f"{place.format(row[found.row], words)}: {WITHIN}")


class OutOfPlace(ValueError):
    """An index is out of range; the words continue after "have". mend: what to do about it."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(f"{number} {words}")
        self.mend = "number them so, or let the model have more" if number >= 0 else NONE_IGNORED


class Odd(NamedTuple):
    """What should not be in a batch: the input, the row, and the number."""

    name: str
    row: int
    value: float

    @property
    def words(self) -> str:
        return f"{self.value} in {self.name!r}"


def first_odd(arrays: Mapping[str, np.ndarray], kinds: Sequence[np.ufunc] = (np.isnan, np.isinf)) -> Odd | None:
    """The first number of a batch that is of one of these kinds, the first kind first; None where there is none."""
    strange = {name: rows for name, rows in arrays.items() if not is_finite(rows)}
    for kind in kinds:
        for name, rows in strange.items():
            if found := _first(name, rows, kind):
                return found
    return None


def _first(name: str, rows: np.ndarray, is_odd: Callable[[np.ndarray], np.ndarray]) -> Odd | None:
    """The first odd number of an input; None where there is none."""
    found = np.argwhere(is_odd(rows))
    return Odd(name, int(found[0][0]), float(rows[tuple(found[0])])) if found.size else None


def is_finite(array: np.ndarray) -> bool:
    """Whether an array has no infinity and no NaN."""
    # the extremes of an array are finite where all of it is, and no second array is made
    return array.dtype.kind not in "fV" or not array.size or bool(np.isfinite(array.min()) and np.isfinite(array.max()))


def _fit(graph: Graph, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises OutOfPlace for an integer that an input's dtype cannot hold."""
    for name, rows in arrays.items():
        kind = np.dtype(graph.tensors[name].dtype)
        has_less = kind.kind in "iu" and not np.can_cast(rows.dtype, kind)
        if has_less and (number := outside(rows, kind)) is not None:
            bounds = np.iinfo(kind)
            raise OutOfPlace(number, f"in {name!r}, which holds {bounds.min} to {bounds.max} as {kind}")


def check_batch(nodes: list[Node], arrays: Mapping[str, np.ndarray]) -> None:
    """Raises OutOfPlace where an operator gets an index of a batch that is out of range."""
    for node, operand, met, length in _numbered(nodes, arrays):
        if met.size and not 0 <= met.min() <= met.max() < length:
            wrong = int(met.min() if met.min() < 0 else met.max())
            raise OutOfPlace(wrong, f"in {node.inputs[operand]!r}, where {node.full_name} takes 0 to {length - 1}")


def _numbered(nodes: list[Node], arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[Node, int, np.ndarray, int]]:
    """The indices computed from a batch: node, operand, indices, and their upper bound."""
    # commands that run nothing do without
    from castile.launch.arrays import defined

    known = dict(arrays)
    for node in nodes:
        whole = node.whole()
        given = [known.get(name) for name in node.inputs]
        operands = [None if one is None else one[slices(whole.reads(n))] for n, one in enumerate(given)]
        for operand, axes in node.op.numbering:
            found, length = operands[operand], prod(map(whole.extent, axes.split()))
            if found is not None:
                yield node, operand, found, length
        if len(held := [one for one in given if one is not None]) == len(given):
            known.update(zip(node.outputs, defined.run(node, "F", held), strict=True))


def _nodes(graph: Graph, asked: list[str]) -> list[Node]:
    """The nodes that integers of the inputs reach: those that index by them, and those that pass them on."""
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

"""What a loss applies to each number of an output, and of its labels, before it subtracts one from the other.

It does not know which input has the labels, nor how an output is scored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from castile.planner.families.elementwise import Unary
from castile.planner.graph import Graph, Node

# Operators that make an output of the scores that a loss takes.
_SHARES = ("softmax", "safe_softmax", "log_softmax", "sigmoid", "reshape")
# Operators that take one operand from another, place by place.
_DIFFERENCES = ("mse", "sub")
# Operators after which the same numbers lie in the same order.
_SAME = ("reshape", "real")
# Operators that make something of single numbers, one after another.
Transform = tuple[Unary, ...]
NO_TRANSFORMS: tuple[Transform, Transform] = ((), ())

Producers = Mapping[str, Node]


def loss_transforms(graph: Graph, judged: str, output: str, labels: str) -> tuple[Transform, Transform] | None:
    """The elementwise operators that a loss applies to an output and to its labels: none of either where it takes no
    difference, or applies the same to both. None where it applies other operators, or multiplies the labels with
    logarithms of the output's softmax: the output is then scores, which labels that are shares cannot be compared with.

    judged   the output as it is compared; `output` itself, or that with other dims
    """
    producers = graph.producers
    found = list[tuple[Transform, Transform] | None]()
    for said, truth in _differences(graph, producers, {judged, *scores_of(producers, output)}, labels):
        if _are_made_alike(producers, said, truth, judged, labels):
            return NO_TRANSFORMS
        of_said, of_truth = _transform(producers, judged, said), _transform(producers, labels, truth)
        found.append(None if of_said is None or of_truth is None else (of_said, of_truth))
    if not found:
        return None if _are_weights_of_scores(graph, producers, judged, labels) else NO_TRANSFORMS
    return next((one for one in found if one is not None), None)


def _are_weights_of_scores(graph: Graph, producers: Producers, judged: str, labels: str) -> bool:
    """Whether the labels are multiplied with log-softmax of the output."""
    products = (node.inputs for node in graph.nodes.values() if node.op.name == "mul")
    for one, other in (pair for inputs in products for pair in (inputs, inputs[::-1])):
        producer = producers.get(one)
        if _bare(producers, other, labels) == labels and producer is not None and producer.op.name == "log_softmax":
            return one == judged or _transform(producers, judged, producer.inputs[0]) is not None
    return False


def scores_of(producers: Producers, output: str) -> Iterator[str]:
    """The scores that an output is the shares of, and tensors with the same numbers."""
    while (producer := producers.get(output)) is not None and producer.op.name in _SHARES:
        output = producer.inputs[0]
        yield output


def _differences(graph: Graph, producers: Producers, said: Collection[str], labels: str) -> Iterator[tuple[str, str]]:
    """The pairs of tensors that nodes subtract, of which one is made of the output only, and the other of its labels.
    """
    ours, theirs = set(said), {labels}
    for node in graph.nodes.values():
        for names in (ours, theirs):
            names.update(node.outputs if names.intersection(node.inputs) else ())
        for one, other in _operands(producers, node):
            if one in ours - theirs and other in theirs - ours:
                yield one, other


def _operands(producers: Producers, node: Node) -> list[tuple[str, str]]:
    """The operands of a difference, in both orders; none of another node."""
    if node.op.name in _DIFFERENCES:
        one, other = node.inputs
        return [(one, other), (other, one)]
    pairs = (node.inputs, node.inputs[::-1]) if node.op.name == "add" and len(node.inputs) == 2 else ()
    signed = ((one, producers[other]) for one, other in pairs if other in producers)
    taken = [(one, producer.inputs[0]) for one, producer in signed if producer.op.name == "neg"]
    return [pair for one, other in taken for pair in ((one, other), (other, one))]


def _bare(producers: Producers, name: str, source: str) -> str:
    """The tensor, behind reshapes and casts, that has the same numbers; not further back than `source`."""
    while name != source and (producer := producers.get(name)) is not None and producer.op.name in _SAME:
        name = producer.inputs[0]
    return name


def _are_made_alike(producers: Producers, one: str, other: str, judged: str, labels: str) -> bool:
    """Whether the one is made of the output as the other is of its labels."""
    said, truth = _bare(producers, one, judged), _bare(producers, other, labels)
    if (said, truth) == (judged, labels) or one == other:
        return True
    ours, theirs = producers.get(said), producers.get(truth)
    if said == judged or ours is None or theirs is None or ours.op != theirs.op:
        return False
    pairs = zip(ours.inputs, theirs.inputs, strict=False)
    is_as_long = len(ours.inputs) == len(theirs.inputs)
    return is_as_long and all(_are_made_alike(producers, *pair, judged, labels) for pair in pairs)


def _transform(producers: Producers, source: str, end: str) -> Transform | None:
    """The elementwise operators that make `end` of `source`; None where others do."""
    way: Transform = ()
    while (end := _bare(producers, end, source)) != source:
        producer = producers.get(end)
        if producer is None or not isinstance(producer.op, Unary):
            return None
        way, end = (producer.op, *way), producer.inputs[0]
    return way

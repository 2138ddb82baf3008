"""What a loss applies to each number of an output, and of its labels, before it subtracts one from the other.

It does not know which input has the labels, nor how an output is scored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from castile.planner.families.elementwise import Unary
from castile.planner.graph import Graph, Node

# Operators that make an output of the scores that a loss takes.
SHARES = ("softmax", "safe_softmax", "log_softmax", "sigmoid", "reshape")
# Operators that take one operand from another, place by place.
DIFFERENCES = ("mse", "sub")
# Operators after which the same numbers lie in the same order.
_SAME = ("reshape", "real")
# Operators that make something of single numbers, one after another.
Transform = tuple[Unary, ...]
NO_TRANSFORMS: tuple[Transform, Transform] = ((), ())

Makers = Mapping[str, Node]


def loss_transforms(graph: Graph, judged: str, output: str, labels: str) -> tuple[Transform, Transform] | None:
    """The elementwise operators that a loss applies to an output and to its labels: none of either where it takes no
    difference, or applies the same to both. None where it applies other operators, or multiplies the labels with
    logarithms of the output's softmax: the output is then scores, which labels that are shares cannot be compared with.

    judged   the output as it is compared; `output` itself, or that with other dims
    """
    makers = {name: node for node in graph.nodes.values() for name in node.outputs}
    found = list[tuple[Transform, Transform] | None]()
    for said, truth in _differences(graph, makers, {judged, *_scores_of(makers, output)}, labels):
        if _are_made_alike(makers, said, truth, judged, labels):
            return NO_TRANSFORMS
        of_said, of_truth = _transform(makers, judged, said), _transform(makers, labels, truth)
        found.append(None if of_said is None or of_truth is None else (of_said, of_truth))
    if not found:
        return None if _are_weights_of_scores(graph, makers, judged, labels) else NO_TRANSFORMS
    return next((one for one in found if one is not None), None)


def _are_weights_of_scores(graph: Graph, makers: Makers, judged: str, labels: str) -> bool:
    """Whether the labels are multiplied with log-softmax of the output."""
    products = (node.inputs for node in graph.nodes.values() if node.op.name == "mul")
    for one, other in (pair for inputs in products for pair in (inputs, inputs[::-1])):
        maker = makers.get(one)
        if _bare(makers, other, labels) == labels and maker is not None and maker.op.name == "log_softmax":
            return one == judged or _transform(makers, judged, maker.inputs[0]) is not None
    return False


def _scores_of(makers: Makers, output: str) -> Iterator[str]:
    """The scores that an output is the shares of, and tensors with the same numbers."""
    while (maker := makers.get(output)) is not None and maker.op.name in SHARES:
        output = maker.inputs[0]
        yield output


def _differences(graph: Graph, makers: Makers, said: Collection[str], labels: str) -> Iterator[tuple[str, str]]:
    """The pairs of tensors that nodes subtract, of which one is made of the output only, and the other of its labels.
    """
    ours, theirs = set(said), {labels}
    for node in graph.nodes.values():
        for names in (ours, theirs):
            names.update(node.outputs if names.intersection(node.inputs) else ())
        for one, other in _operands(makers, node):
            if one in ours - theirs and other in theirs - ours:
                yield one, other


def _operands(makers: Makers, node: Node) -> list[tuple[str, str]]:
    """The operands of a difference, in both orders; none of another node."""
    if node.op.name in DIFFERENCES:
        one, other = node.inputs
        return [(one, other), (other, one)]
    pairs = (node.inputs, node.inputs[::-1]) if node.op.name == "add" and len(node.inputs) == 2 else ()
    signed = ((one, makers[other]) for one, other in pairs if other in makers)
    taken = [(one, maker.inputs[0]) for one, maker in signed if maker.op.name == "neg"]
    return [pair for one, other in taken for pair in ((one, other), (other, one))]


def _bare(makers: Makers, name: str, source: str) -> str:
    """The tensor, behind reshapes and casts, that has the same numbers; not further back than `source`."""
    while name != source and (maker := makers.get(name)) is not None and maker.op.name in _SAME:
        name = maker.inputs[0]
    return name


def _are_made_alike(makers: Makers, one: str, other: str, judged: str, labels: str) -> bool:
    """Whether the one is made of the output as the other is of its labels."""
    said, truth = _bare(makers, one, judged), _bare(makers, other, labels)
    if (said, truth) == (judged, labels) or one == other:
        return True
    ours, theirs = makers.get(said), makers.get(truth)
    if said == judged or ours is None or theirs is None or ours.op != theirs.op:
        return False
    pairs = zip(ours.inputs, theirs.inputs, strict=False)
    is_as_long = len(ours.inputs) == len(theirs.inputs)
    return is_as_long and all(_are_made_alike(makers, *pair, judged, labels) for pair in pairs)


def _transform(makers: Makers, source: str, end: str) -> Transform | None:
    """The elementwise operators that make `end` of `source`; None where others do."""
    way: Transform = ()
    while (end := _bare(makers, end, source)) != source:
        maker = makers.get(end)
        if maker is None or not isinstance(maker.op, Unary):
            return None
        way, end = (maker.op, *way), maker.inputs[0]
    return way

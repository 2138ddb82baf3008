"""Comparing: what a loss makes of each number of an output, and of its labels, before it takes the one from the other.

It does not know which input has the labels, nor what an output is worth.
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
Way = tuple[Unary, ...]
NOTHING: tuple[Way, Way] = ((), ())

Makers = Mapping[str, Node]


def ways(graph: Graph, judged: str, output: str, labels: str) -> tuple[Way, Way] | None:
    """What a loss makes of an output and of its labels, number by number: nothing of either where it takes no
    difference, or makes the same of both. None where it makes something else of them than that, or weighs logarithms of
    shares of the output by the labels, which are shares then: it has scores, which are none.

    judged   the output as it is compared; `output` itself, or that with other dims
    """
    makers = {name: node for node in graph.nodes.values() for name in node.outputs}
    found = list[tuple[Way, Way] | None]()
    for said, truth in _differences(graph, makers, {judged, *_scores_of(makers, output)}, labels):
        if _are_alike(makers, said, truth, judged, labels):
            return NOTHING
        of_said, of_truth = _way(makers, judged, said), _way(makers, labels, truth)
        found.append(None if of_said is None or of_truth is None else (of_said, of_truth))
    if not found:
        return None if _are_weights_of_scores(graph, makers, judged, labels) else NOTHING
    return next((one for one in found if one is not None), None)


def _are_weights_of_scores(graph: Graph, makers: Makers, judged: str, labels: str) -> bool:
    products = (node.inputs for node in graph.nodes.values() if node.op.name == "mul")
    for one, other in (pair for inputs in products for pair in (inputs, inputs[::-1])):
        maker = makers.get(one)
        if _bare(makers, other, labels) == labels and maker is not None and maker.op.name == "log_softmax":
            return one == judged or _way(makers, judged, maker.inputs[0]) is not None
    return False


def _scores_of(makers: Makers, output: str) -> Iterator[str]:
    """What an output is the shares of, or the same numbers as."""
    while (maker := makers.get(output)) is not None and maker.op.name in SHARES:
        output = maker.inputs[0]
        yield output


def _differences(graph: Graph, makers: Makers, said: Collection[str], labels: str) -> Iterator[tuple[str, str]]:
    """What nodes take from each other, of which the one is made of an output alone, and the other of its labels."""
    ours, theirs = set(said), {labels}
    for node in graph.nodes.values():
        for names in (ours, theirs):
            names.update(node.outputs if names.intersection(node.inputs) else ())
        for one, other in _operands(makers, node):
            if one in ours - theirs and other in theirs - ours:
                yield one, other


def _operands(makers: Makers, node: Node) -> list[tuple[str, str]]:
    """The operands of a difference, either first; none of another node."""
    if node.op.name in DIFFERENCES:
        one, other = node.inputs
        return [(one, other), (other, one)]
    pairs = (node.inputs, node.inputs[::-1]) if node.op.name == "add" and len(node.inputs) == 2 else ()
    signed = ((one, makers[other]) for one, other in pairs if other in makers)
    taken = [(one, maker.inputs[0]) for one, maker in signed if maker.op.name == "neg"]
    return [pair for one, other in taken for pair in ((one, other), (other, one))]


def _bare(makers: Makers, name: str, source: str) -> str:
    """The tensor of the same numbers, from which others, if not from `source`, have them."""
    while name != source and (maker := makers.get(name)) is not None and maker.op.name in _SAME:
        name = maker.inputs[0]
    return name


def _are_alike(makers: Makers, one: str, other: str, judged: str, labels: str) -> bool:
    """Whether the same is made of an output in the one as of its labels in the other."""
    said, truth = _bare(makers, one, judged), _bare(makers, other, labels)
    if (said, truth) == (judged, labels) or one == other:
        return True
    ours, theirs = makers.get(said), makers.get(truth)
    if said == judged or ours is None or theirs is None or ours.op != theirs.op:
        return False
    pairs = zip(ours.inputs, theirs.inputs, strict=False)
    return len(ours.inputs) == len(theirs.inputs) and all(_are_alike(makers, *pair, judged, labels) for pair in pairs)


def _way(makers: Makers, source: str, end: str) -> Way | None:
    """The operators that make a tensor of another, number by number; None where others do."""
    way: Way = ()
    while (end := _bare(makers, end, source)) != source:
        maker = makers.get(end)
        if maker is None or not isinstance(maker.op, Unary):
            return None
        way, end = (maker.op, *way), maker.inputs[0]
    return way

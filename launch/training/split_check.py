"""Checks operators of a model's own file: computes them in parts, as their axis lines allow, and compares with the
whole.

It does not know what an operator is for: one may compute something else on parts of a batch on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from castile.launch.arrays import defined
from castile.launch.arrays.defined import Arrays
from castile.launch.training import own_operators
from castile.planner.graph import Graph, Node
from castile.planner.op import PASSES, Tensor
from castile.planner.strategy import parts
from castile.runtime.region import slices

# How far off numbers may be, of the largest.
TOLERANCE = 1e-6


def remarks(graph: Graph) -> list[str]:
    """A line for each axis of a user's operator that may be split and along which parts compute something else than the
    whole does, at random operands.
    """
    return own_operators.remarks(graph, _remarks)


def _remarks(node: Node, tensors: Sequence[Tensor]) -> Iterator[str]:
    arrays, results = defined.drawn(node, tensors)
    random = np.random.default_rng(len(arrays))
    pulls = [random.normal(size=y.shape) for y in results[: node.op.flows]]
    a = node.alignment
    for axis in a.axes:
        if axis in a.frozen or a.extents[axis] < 2:
            continue
        for which in filter(node.op.has, PASSES):
            targets = None if which == "F" else [n for n, t in enumerate(tensors) if t.param == (which == "W")]
            whole, cut = (_together(node, which, {axis: n}, targets, (arrays, pulls, results)) for n in (1, 2))
            if any(np.abs(x - y).max(initial=0) > TOLERANCE * np.abs(x).max() for x, y in zip(whole, cut, strict=True)):
                what = "results" if which == "F" else "gradients"
                yield (
                    f"{node.op.name}: in parts along {axis!r} it has other {what} than in one piece (at {node.name}), "
                    f"and a plan may cut it so: write {axis}! in its axis line; leave it only if it is meant so"
                )
                break


def _together(
    node: Node, which: str, split: Mapping[str, int], targets: Sequence[int] | None,
    given: tuple[Arrays, Arrays, Arrays],
) -> Arrays:  # fmt: skip
    """The results, or the gradients of the operands `targets`, of a pass computed in parts; those of several parts add
    up.

    given   whole operands, gradients of results, and results
    """
    arrays, _, results = given
    likes = results if targets is None else [arrays[n] for n in targets]
    made = [np.zeros(like.shape) for like in likes]
    for part in parts(node, split):
        boxes = [part.writes(n) for n in range(len(results))] if targets is None else [part.reads(n) for n in targets]
        for whole, box, piece in zip(made, boxes, defined.run(node, which, *given, part), strict=True):
            whole[slices(box)] += 0 if piece is None else piece
    return made

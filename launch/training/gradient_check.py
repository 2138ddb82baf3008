"""Checks gradients of operators of a model's own file against finite differences of their results.

It does not know what an operator is for: one may define other gradients on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from castile.launch.arrays import defined
from castile.launch.arrays.defined import Arrays
from castile.launch.training import own_operators
from castile.planner.graph import Graph, Node
from castile.planner.op import PASSES, Part, Tensor
from castile.runtime.region import slices

# How far operands are moved, in float64, and how far off a slope may be of the larger of the two.
STEP, TOLERANCE = 1e-6, 1e-3
# Of two directions one may cross a kink.
DIRECTIONS = 2


def remarks(graph: Graph) -> list[str]:
    """A line for each operand of a user's operator whose gradient disagrees with finite differences, at random
    operands.
    """
    return own_operators.remarks(graph, _remarks)


def _remarks(node: Node, tensors: Sequence[Tensor]) -> Iterator[str]:
    arrays, results = defined.drawn(node, tensors)
    random, part = np.random.default_rng(len(arrays)), node.whole()
    pulls = [random.normal(size=y.shape) for y in results[: node.op.flows]]
    for which in PASSES:
        of = [n for n, tensor in enumerate(tensors) if tensor.param == (which == "W")]
        made = defined.run(node, which, arrays, pulls, results) if which != "F" and node.op.has(which) else []
        for n, gradient in zip(of, made, strict=False):
            given = None if gradient is None else _placed(gradient, part, n, arrays[n])
            if tensors[n].floating and (off := _disagreement(node, arrays, pulls, n, given, random)):
                yield (
                    f"{node.op.name}: its gradient of operand {n} says {off[1]:.4g} where its results change by "
                    f"{off[0]:.4g} (at {node.name}, along a direction that was drawn): leave it only if it is meant so"
                )


def _disagreement(
    node: Node, arrays: Arrays, pulls: Arrays, n: int, gradient: np.ndarray | None, random: np.random.Generator
) -> tuple[float, float] | None:
    """The finite difference of the results along a random direction, and the gradient's value; None where they agree.
    """
    for _ in range(DIRECTIONS):
        direction = random.normal(size=arrays[n].shape)
        ends = [[a + s * STEP * direction if m == n else a for m, a in enumerate(arrays)] for s in (1, -1)]
        high, low = (defined.run(node, "F", one) for one in ends)
        slope = sum(float(np.sum(dy * (a - b))) for dy, a, b in zip(pulls, high, low, strict=False)) / (2 * STEP)
        said = 0.0 if gradient is None else float(np.sum(gradient * direction))
        if abs(slope - said) <= TOLERANCE * max(abs(slope), abs(said), TOLERANCE):
            return None
    return slope, said


def _placed(gradient: np.ndarray, part: Part, n: int, like: np.ndarray) -> np.ndarray:
    """A gradient of the part of an operand that is read, zero elsewhere."""
    whole = np.zeros(like.shape)
    whole[slices(part.reads(n))] = gradient
    return whole

"""What recurrent layers share: the input's part of all positions' gates, and steps as one sequence.

It does not know what a cell does.
"""

from __future__ import annotations

from math import sqrt

from castile.planner.graph import Graph
from castile.planner.op import Init, Tensor


def shares_of(g: Graph, name: str, x: Tensor, gates: int, width: int) -> Tensor:
    """The input's share of the gates at all positions, [b, s, gates, h]."""
    init = Init("uniform", 1 / sqrt(width))
    weight = g.param(f"{name}.input", (gates, width, x.shape[2]), ("g", "h", "i"), init)
    return g.contract(f"{name}.gates", "b s i, g h i -> b s g h", x, weight)


def together(g: Graph, name: str, steps: list[Tensor]) -> Tensor:
    """The hidden units of steps as one sequence [b, s, h]."""
    return g.concat(f"{name}.states", 1, *steps) if len(steps) > 1 else steps[0]

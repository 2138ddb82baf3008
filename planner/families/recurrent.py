"""What recurrent cells and layers share: a step's own position, the input's part of all gates, steps as one sequence.

It does not know what a cell computes.
"""

from __future__ import annotations

from typing import ClassVar

from castile.planner.axes import parse
from castile.planner.graph import Graph
from castile.planner.op import Init, Op, Part, Tensor
from castile.runtime.region import Box


def shares_of(g: Graph, name: str, x: Tensor, gates: int, width: int) -> Tensor:
    """The input's share of the gates at all positions, [b, s, gates, h]."""
    init = Init.by_inputs(width)
    weight = g.param(f"{name}.input", (gates, width, x.shape[2]), ("g", "h", "i"), init)
    return g.contract(f"{name}.gates", "b s i, g h i -> b s g h", x, weight)


def together(g: Graph, name: str, steps: list[Tensor]) -> Tensor:
    """The hidden units of steps as one sequence [b, s, h]."""
    return g.concat(f"{name}.states", 1, *steps) if len(steps) > 1 else steps[0]


class Cell(Op):
    """Base of recurrent steps: operand 0, x [b, s, g, h], holds the gates' share of all positions; one is read.

    first   the axis line of a step that has none before it
    """

    first: ClassVar[str]
    costless = unrecorded = ("position",)
    position: int

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        x = inputs[0]
        if self.position >= x.shape[1]:
            raise ValueError(f"{self.name}: {x.name!r} of shape {x.shape} has no position {self.position}")
        return self.first if len(inputs) == len(parse(self.first).operands) else self.line

    def follows(self, operand: int) -> bool:
        return operand > 0

    def reads(self, operand: int, part: Part) -> Box:
        box = super().reads(operand, part)
        return box if self.follows(operand) else box.along(1, self.position, self.position + 1)

    def flops(self, which: str, part: Part) -> float:
        # those of the product with the state; a step that has none before it still has its gates
        of = {axis: hi - lo for axis, (lo, hi) in part.ranges.items()}
        return self.flops_per_point * of["b"] * of["g"] * of["h"] * of.get("i", 1)


def cell_operands(
    g: Graph, weights: str, x: Tensor, biases: tuple[str, ...], state: tuple[Tensor, ...] | None
) -> list[Tensor]:
    """The operands of a cell but x: its biases, the state before, and where there is one the weight that meets it."""
    gates, units = x.shape[2:]
    init = Init.by_inputs(units)
    operands = [g.param(f"{weights}.{bias}", (gates, units), ("g", "h"), init) for bias in biases]
    if state is not None:
        operands += [*state, g.param(f"{weights}.weight", (gates, units, units), ("g", "h", "i"), init)]
    return operands

"""Elements of an array where a mask is above zero, and a number elsewhere, whatever is there."""

from __future__ import annotations

from castile.planner.families.elementwise import Broadcast
from castile.planner.op import Tensor, op


@op("..., ... -> ...", flops_per_point=1)
class Masked(Broadcast):
    """a [...], mask [...] -> y [...]; missing leading dims and dims of one are stretched; the mask has no gradient."""

    other: float = 0.0

    value = "a, b -> where(b > 0, a, other)"
    slopes = ("d, b -> where(b > 0, d, 0)", None)

    @staticmethod
    def layer(g, name: str, x: Tensor, mask: Tensor, other: float = 0.0) -> Tensor:
        """Add the operator to graph `g`; either operand may be the smaller one, and x a parameter."""
        return g.apply(Masked(other), name, x, mask)

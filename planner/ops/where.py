"""Of two elements the one that a mask says, of arrays that broadcast."""

from __future__ import annotations

from castile.planner.families.elementwise import Broadcast
from castile.planner.op import Tensor, op


@op("..., ..., ... -> ...", flops_per_point=1)
class Where(Broadcast):
    """mask [...], a [...], b [...] -> y [...]: a where the mask is above zero, else b; the mask has no gradient."""

    value = "m, a, b -> where(m > 0, a, b)"
    slopes = (None, "d, m -> where(m > 0, d, 0)", "d, m -> where(m > 0, 0, d)")

    @staticmethod
    def layer(g, name: str, mask: Tensor, x: Tensor, other: Tensor) -> Tensor:
        """Add the operator to graph `g`; any operand may be the smaller one, and x and other parameters."""
        return g.apply(Where(), name, mask, x, other)

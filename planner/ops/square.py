"""Square."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=1)
class Square(Unary):
    """x [...] -> y [...]."""

    value = "x -> x * x"
    slope = "d, x -> 2 * d * x"

"""Square root, of positive numbers."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=4)
class Sqrt(Unary):
    """x [...] -> y [...]."""

    value = "x -> sqrt(x)"
    slope = "d, y -> 0.5 * d / y"

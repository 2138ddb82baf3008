"""One divided by each element."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=1)
class Reciprocal(Unary):
    """x [...] -> y [...]."""

    value = "x -> 1 / x"
    slope = "d, y -> -d * y * y"

"""Natural logarithm, of positive numbers."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=8)
class Log(Unary):
    """x [...] -> y [...]."""

    value = "x -> log(x)"
    slope = "d, x -> d / x"

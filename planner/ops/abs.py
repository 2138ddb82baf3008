"""Absolute value; its gradient at 0 is 0."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=1)
class Abs(Unary):
    """x [...] -> y [...]."""

    value = "x -> abs(x)"
    slope = "d, x -> where(x > 0, d, where(x < 0, -d, 0))"

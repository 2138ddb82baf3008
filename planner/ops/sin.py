"""Sine of an angle in radians."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=16)
class Sin(Unary):
    """x [...] -> y [...]."""

    value = "x -> sin(x)"
    slope = "d, x -> d * cos(x)"

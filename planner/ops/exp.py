"""Exponential function."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=8)
class Exp(Unary):
    """x [...] -> y [...]."""

    value = "x -> exp(x)"
    slope = "d, y -> d * y"

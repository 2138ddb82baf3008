"""Negative."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=1)
class Neg(Unary):
    """x [...] -> y [...]."""

    value = "x -> -x"
    slope = "d -> -d"

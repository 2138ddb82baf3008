"""Hyperbolic tangent."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=8)
class Tanh(Unary):
    """x [...] -> y [...]."""

    value = "x -> tanh(x)"
    slope = "d, y -> d * (1 - y * y)"

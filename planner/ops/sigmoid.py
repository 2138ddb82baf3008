"""Logistic function: y = 1 / (1 + e^-x)."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=8)
class Sigmoid(Unary):
    """x [...] -> y [...]."""

    value = "x -> sigmoid(x)"
    slope = "d, y -> d * y * (1 - y)"

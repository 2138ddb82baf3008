"""Sigmoid-weighted linear unit: y = x sigmoid(x) (Elfwing, Uchibe and Doya, 2018)."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=12)
class Silu(Unary):
    """x [...] -> y [...]."""

    value = "x -> x * sigmoid(x)"
    slope = "d, x -> d * sigmoid(x) * (1 + x * (1 - sigmoid(x)))"

"""Exponential linear unit: y = alpha (e^x - 1) where x is negative (Clevert, Unterthiner and Hochreiter, 2016)."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=8)
class Elu(Unary):
    """x [...] -> y [...]; y = x where x is positive."""

    alpha: float = 1.0

    value = "x -> where(x > 0, x, alpha * expm1(x))"
    slope = "d, x, y -> where(x > 0, d, d * (y + alpha))"

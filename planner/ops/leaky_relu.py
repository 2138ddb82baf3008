"""Rectifier that lets a part of what is negative through (Maas, Hannun and Ng, 2013)."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=2)
class LeakyRelu(Unary):
    """x [...] -> y [...]; y = below * x where x is negative."""

    below: float = 0.01

    value = "x -> where(x > 0, x, below * x)"
    slope = "d, x -> where(x > 0, d, below * d)"

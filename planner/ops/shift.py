"""Sum with a constant."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=1)
class Shift(Unary):
    """x [...] -> y [...]; amount is the constant."""

    amount: float = 0.0

    value = "x -> x + amount"
    slope = "d -> d"

"""Product with a constant."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=1)
class Scale(Unary):
    """x [...] -> y [...]; factor is the constant."""

    factor: float = 1.0

    value = "x -> factor * x"
    slope = "d -> factor * d"

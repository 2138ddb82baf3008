"""Bounds: elements below the one or above the other are as large as it is, and have no gradient."""

from __future__ import annotations

from math import inf

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=2)
class Clamp(Unary):
    """x [...] -> y [...]; low and high are the bounds, infinite for none."""

    low: float = -inf
    high: float = inf

    value = "x -> minimum(maximum(x, low), high)"
    slope = "d, x -> where(x < low, 0, where(x > high, 0, d))"

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"clamp: low {self.low} should be at most high, {self.high}")

"""Smooth rectifier: y = log(1 + e^x) (Dugas et al., 2001)."""

from __future__ import annotations

from castile.planner.families.elementwise import Unary
from castile.planner.op import op


@op("... -> ...", flops_per_point=16)
class Softplus(Unary):
    """x [...] -> y [...] = log(1 + e^(beta x)) / beta, and y = x where beta x is above the threshold, as in PyTorch."""

    beta: float = 1.0
    threshold: float = 20.0

    value = "x -> where(beta * x > threshold, x, (maximum(beta * x, 0) + log1p(exp(-abs(beta * x)))) / beta)"
    slope = "d, x -> where(beta * x > threshold, d, d * sigmoid(beta * x))"

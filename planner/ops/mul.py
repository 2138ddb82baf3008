"""Product of two arrays that broadcast: a gate, a gain."""

from __future__ import annotations

from castile.planner.families.elementwise import Binary
from castile.planner.op import op


@op("..., ... -> ...", flops_per_point=1)
class Mul(Binary):
    """a [...], b [...] -> y [...]; missing leading dims and dims of one are stretched."""

    value = "a, b -> a * b"
    slopes = ("d, b -> d * b", "d, a -> d * a")

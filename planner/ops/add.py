"""Sum of two arrays that broadcast: a residual, a table of positions added to every sample."""

from __future__ import annotations

from castile.planner.families.elementwise import Binary
from castile.planner.op import op


@op("..., ... -> ...", flops_per_point=1)
class Add(Binary):
    """a [...], b [...] -> y [...]; missing leading dims and dims of one are stretched."""

    value = "a, b -> a + b"
    slopes = ("d -> d", "d -> d")

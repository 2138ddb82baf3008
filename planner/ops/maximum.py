"""The larger of two elements, of arrays that broadcast; where they are equal each gets half of the gradient."""

from __future__ import annotations

from castile.planner.families.elementwise import Binary
from castile.planner.op import op


@op("..., ... -> ...", flops_per_point=1)
class Maximum(Binary):
    """a [...], b [...] -> y [...]; missing leading dims and dims of one are stretched."""

    value = "a, b -> maximum(a, b)"
    slopes = (
        "d, a, b -> where(a > b, d, where(a == b, 0.5 * d, 0))",
        "d, a, b -> where(b > a, d, where(a == b, 0.5 * d, 0))",
    )

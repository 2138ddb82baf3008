"""Elements of an array where a mask is above zero, and zeros elsewhere, whatever is there."""

from __future__ import annotations

from castile.planner.families.elementwise import Binary
from castile.planner.op import op


@op("..., ... -> ...", flops_per_point=1)
class Masked(Binary):
    """a [...], mask [...] -> y [...]; missing leading dims and dims of one are stretched; the mask has no gradient."""

    value = "a, b -> where(b > 0, a, 0)"
    slopes = ("d, b -> where(b > 0, d, 0)", "d -> 0 * d")

"""Sums and maxima over dims, and the way back.

It knows no line of arithmetic.
"""

from typing import Any

from castile.kernels.triton.launch import Plan, planned, takes
from castile.kernels.triton.lines import MAXIMUM, MOVE, each, folded, text
from castile.kernels.triton.views import Shape, View, view

_ALONE = text("x -> x")


@planned
def sum_over(out: Any, x: Any, *, dims: Shape, accumulate: bool) -> Plan | None:
    """See the definition."""
    return folded(_ALONE, [view(out)], [view(x)], dims, {}, adds=accumulate) if takes(out, x) else None


@planned
def max_over(out: Any, x: Any, *, dims: Shape) -> Plan | None:
    """See the definition."""
    return folded(_ALONE, [view(out)], [view(x)], dims, {}, MAXIMUM) if takes(out, x) else None


@planned
def expand(out: Any, x: Any, *, shape: Shape, dims: Shape | None = None) -> Plan:
    """See the definition."""
    new = set(range(len(shape)) if dims is None else (dim % len(shape) for dim in dims))
    steps = iter(view(x).steps)
    return each(
        MOVE, [view(out)], [View(x, tuple(shape), tuple(0 if d in new else next(steps) for d in range(len(shape))))], {}
    )

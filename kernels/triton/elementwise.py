"""Arithmetic on each element of arrays that broadcast, written down or summed, and moves of arrays.

It knows no line of arithmetic.
"""

from typing import Any

import numpy as np

from castile.kernels.triton.launch import Plan, planned, takes
from castile.kernels.triton.lines import MOVE, each, folded, text
from castile.kernels.triton.views import Shape, broadcast, view


@planned
def pointwise(out: Any, line: str, *xs: Any, accumulate: bool, **constants: float) -> Plan | None:
    """See the definition."""
    if not takes(out, *xs):
        return None
    ys = [broadcast(view(x), out.shape) for x in xs]
    return each(text(line, *constants), [view(out)], ys, constants, accumulate)


@planned
def sum_pointwise(out: Any, line: str, *xs: Any, dims: Shape, accumulate: bool, **constants: float) -> Plan | None:
    """See the definition."""
    if not takes(out, *xs):
        return None
    shape = np.broadcast_shapes(*(x.shape for x in xs))
    ys = [broadcast(view(x), shape) for x in xs]
    return folded(text(line, *constants), [view(out)], ys, dims, constants, adds=accumulate)


@planned
def real(out: Any, x: Any, *, dtype: str) -> Plan | None:
    """See the definition."""
    return each(MOVE, [view(out)], [view(x)], {}) if takes(out) else None


@planned
def whole(out: Any, x: Any) -> Plan | None:
    """See the definition."""
    return each(MOVE, [view(out)], [view(x)], {}) if takes(x) else None

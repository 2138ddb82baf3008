"""Elementwise expressions over arrays that broadcast, written or summed, and casts.

It knows no expression.
"""

from typing import Any

import numpy as np

from castile.kernels.triton.codegen import elementwise_plan, reduction_plan
from castile.kernels.triton.launch import LaunchPlan, are_floats, planned
from castile.kernels.triton.snippet import COPY, snippet
from castile.kernels.triton.views import Shape, broadcast, view


@planned
def pointwise(out: Any, expression: str, *xs: Any, accumulate: bool, **constants: float) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, *xs):
        return None
    ys = [broadcast(view(x), out.shape) for x in xs]
    return elementwise_plan(snippet(expression, *constants), [view(out)], ys, constants, accumulate)


@planned
def sum_pointwise(
    out: Any, expression: str, *xs: Any, dims: Shape, accumulate: bool, **constants: float
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, *xs):
        return None
    shape = np.broadcast_shapes(*(x.shape for x in xs))
    ys = [broadcast(view(x), shape) for x in xs]
    return reduction_plan(snippet(expression, *constants), [view(out)], ys, dims, constants, adds=accumulate)


@planned
def real(out: Any, x: Any, *, dtype: str) -> LaunchPlan | None:
    """See the definition."""
    return elementwise_plan(COPY, [view(out)], [view(x)], {}) if are_floats(out) else None


@planned
def whole(out: Any, x: Any) -> LaunchPlan | None:
    """See the definition."""
    return elementwise_plan(COPY, [view(out)], [view(x)], {}) if are_floats(x) else None

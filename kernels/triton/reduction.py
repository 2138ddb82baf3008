"""Sums and maxima over dims, and their gradients' broadcast.

It knows no expression.
"""

from typing import Any

from castile.kernels.triton.codegen import MAX, elementwise_plan, reduction_plan
from castile.kernels.triton.launch import LaunchPlan, are_floats, planned
from castile.kernels.triton.snippet import COPY, snippet
from castile.kernels.triton.views import Shape, View, view

_ALONE = snippet("x -> x")


@planned
def sum_over(out: Any, x: Any, *, dims: Shape, accumulate: bool) -> LaunchPlan | None:
    """See the definition."""
    return reduction_plan(_ALONE, [view(out)], [view(x)], dims, {}, adds=accumulate) if are_floats(out, x) else None


@planned
def max_over(out: Any, x: Any, *, dims: Shape) -> LaunchPlan | None:
    """See the definition."""
    return reduction_plan(_ALONE, [view(out)], [view(x)], dims, {}, MAX) if are_floats(out, x) else None


@planned
def expand(out: Any, x: Any, *, shape: Shape, dims: Shape | None = None) -> LaunchPlan:
    """See the definition."""
    new = set(range(len(shape)) if dims is None else (dim % len(shape) for dim in dims))
    steps = iter(view(x).steps)
    return elementwise_plan(
        COPY, [view(out)], [View(x, tuple(shape), tuple(0 if d in new else next(steps) for d in range(len(shape))))], {}
    )

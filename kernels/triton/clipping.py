"""Clipping by the global norm.

It knows no optimizer.
"""

from typing import Any

from castile.kernels.triton.codegen import elementwise_plan
from castile.kernels.triton.launch import LaunchPlan, are_floats, planned
from castile.kernels.triton.multi_tensor import multi_tensor, multi_tensor_sum
from castile.kernels.triton.snippet import Snippet, snippet
from castile.kernels.triton.views import view

_SQUARE = snippet("x -> x * x")
_TIMES = snippet("x, y -> x * y")
_FACTOR = Snippet(("squares",), ("most",), ("norm = sqrt(squares)",), ("minimum(1.0, most / (norm + 1e-6))", "norm"))


@planned
def square_sum(out: Any, x: Any, *more: Any, accumulate: bool) -> LaunchPlan | None:
    """See the definition. Several arrays that lie dense are read by one launch, whose sums another one adds up."""
    return multi_tensor_sum(_SQUARE, out, (x, *more), accumulate) if are_floats(out, x, *more) else None


@planned
def clip_factor(out: tuple[Any, Any], squares: Any, *, most: float) -> LaunchPlan | None:
    """See the definition."""
    return (
        elementwise_plan(_FACTOR, [*map(view, out)], [view(squares)], {"most": most})
        if are_floats(*out, squares)
        else None
    )


@planned
def times(out: Any, x: Any, factor: Any, *more: Any) -> LaunchPlan | None:
    """See the definition. Several arrays that lie dense are multiplied by one launch."""
    outs, arrays = out if more else (out,), (x, factor, *more)
    return multi_tensor(_TIMES, outs, arrays, 1, {}) if are_floats(*outs, *arrays) else None

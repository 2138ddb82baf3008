"""Clipping by the global norm.

It knows no optimizer.
"""

from typing import Any

from castile.kernels.triton.launch import Plan, planned, takes
from castile.kernels.triton.lines import Text, each, text
from castile.kernels.triton.several import several, summed
from castile.kernels.triton.views import view

_SQUARE = text("x -> x * x")
_TIMES = text("x, y -> x * y")
_FACTOR = Text(("squares",), ("most",), ("norm = sqrt(squares)",), ("minimum(1.0, most / (norm + 1e-6))", "norm"))


@planned
def square_sum(out: Any, x: Any, *more: Any, accumulate: bool) -> Plan | None:
    """See the definition. Several arrays that lie dense are read by one launch, whose sums another one adds up."""
    return summed(_SQUARE, out, (x, *more), accumulate) if takes(out, x, *more) else None


@planned
def clip_factor(out: tuple[Any, Any], squares: Any, *, most: float) -> Plan | None:
    """See the definition."""
    return each(_FACTOR, [*map(view, out)], [view(squares)], {"most": most}) if takes(*out, squares) else None


@planned
def times(out: Any, x: Any, factor: Any, *more: Any) -> Plan | None:
    """See the definition. Several arrays that lie dense are multiplied by one launch."""
    outs, arrays = out if more else (out,), (x, factor, *more)
    return several(_TIMES, outs, arrays, 1, {}) if takes(*outs, *arrays) else None

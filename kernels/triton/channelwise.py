"""Elementwise expressions with one number for each channel.

It knows no expression.
"""

from typing import Any

from castile.kernels.triton.codegen import elementwise_plan
from castile.kernels.triton.launch import LaunchPlan, are_floats, planned
from castile.kernels.triton.snippet import snippet
from castile.kernels.triton.views import View, broadcast, view


@planned
def channelwise(
    out: Any, expression: str, *xs: Any, tables: int, accumulate: bool, **constants: float
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, *xs):
        return None
    arrays, last = xs[: len(xs) - tables], xs[len(xs) - tables :]
    ys = [broadcast(view(x), out.shape) for x in arrays]
    ys += [_spread(row, tuple(out.shape)) for table in last for row in _rows(table)]
    return elementwise_plan(snippet(expression, *constants), [view(out)], ys, constants, accumulate)


def _rows(table: Any) -> list[Any]:
    return [table] if len(table.shape) == 1 else [table[n] for n in range(table.shape[0])]


def _spread(row: Any, shape: tuple[int, ...]) -> View:
    """One number for each channel, seen by every element of [b,c,...]."""
    return View(row, shape, tuple(view(row).steps[0] if dim == 1 else 0 for dim in range(len(shape))))

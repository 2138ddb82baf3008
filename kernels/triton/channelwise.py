"""Arithmetic on each element and on numbers of its channel.

It knows no line of arithmetic.
"""

from typing import Any

from castile.kernels.triton.launch import Plan, planned, takes
from castile.kernels.triton.lines import each, text
from castile.kernels.triton.views import View, broadcast, view


@planned
def channelwise(out: Any, line: str, *xs: Any, tables: int, accumulate: bool, **constants: float) -> Plan | None:
    """See the definition."""
    if not takes(out, *xs):
        return None
    arrays, last = xs[: len(xs) - tables], xs[len(xs) - tables :]
    ys = [broadcast(view(x), out.shape) for x in arrays]
    ys += [_spread(row, tuple(out.shape)) for table in last for row in _rows(table)]
    return each(text(line, *constants), [view(out)], ys, constants, accumulate)


def _rows(table: Any) -> list[Any]:
    return [table] if len(table.shape) == 1 else [table[n] for n in range(table.shape[0])]


def _spread(row: Any, shape: tuple[int, ...]) -> View:
    """One number for each channel, seen by every element of [b,c,...]."""
    return View(row, shape, tuple(view(row).steps[0] if dim == 1 else 0 for dim in range(len(shape))))

"""Arrays copied, filled and laid out anew, of any dtype; and sums of two.

It knows no arithmetic but addition.
"""

from typing import Any

from castile.kernels.triton.launch import Plan, Room, all_alike, always, planned, takes
from castile.kernels.triton.lines import MOVE, Text, each, packed, text
from castile.kernels.triton.several import several
from castile.kernels.triton.views import Shape, View, broadcast, permuted, split, view

_ALONE = text("x -> x")
_ADD = text("x, y -> x + y")
# In their own dtype, as moments are added in float64.
_ADD_WIDE = Text(("x", "y"), (), (), ("x + y",), moves=True)
_ZERO = Text((), (), (), ("0.0",))


@planned
def copy(out: Any, x: Any, *more: Any, accumulate: bool) -> Plan | None:
    """See the definition. Several arrays that lie dense are copied by one launch."""
    outs, xs = out if more else (out,), (x, *more)
    if not accumulate:
        return several(MOVE, outs, xs, 0, {})
    return _one_by_one([_moved(view(to), view(one), True) for to, one in zip(outs, xs, strict=True)])


@planned
def zero(out: Any, *, shape: Shape, dtype: str, accumulate: bool) -> Plan:
    """See the definition."""
    return always() if accumulate else each(_ZERO, [view(out)], [], {})


@planned
def add(out: Any, x: Any, y: Any) -> Plan | None:
    """See the definition."""
    what = _ADD if takes(out, x, y) else _ADD_WIDE if _wide(out, x, y) else None
    return what and each(what, [view(out)], [view(x), broadcast(view(y), x.shape)], {})


@planned
def add_bias(out: Any, x: Any, b: Any, *, dim: int) -> Plan | None:
    """See the definition."""
    if not takes(out, x, b):
        return None
    steps = [0] * x.ndim
    steps[dim] = view(b).steps[0]
    return each(_ADD, [view(out)], [view(x), View(b, tuple(x.shape), tuple(steps))], {})


@planned
def reshape(out: Any, x: Any, *, shape: Shape) -> Plan | None:
    """See the definition. Where neither lies dense, x passes through memory in which it does."""
    to, source = view(out), view(x)
    if to.steps == packed(to.shape):
        return each(MOVE, [View(out, source.shape, packed(source.shape))], [source], {})
    if source.steps == packed(source.shape):
        return each(MOVE, [to], [View(x, to.shape, packed(to.shape))], {})
    room = Room(max(1, x.size), x.dtype.name)
    there = each(MOVE, [View(room, source.shape, packed(source.shape))], [source], {})
    back = each(MOVE, [to], [View(room, to.shape, packed(to.shape))], {})
    return all_alike([there, back])


@planned
def rearrange(out: Any, x: Any, *, apart: Shape, dims: Shape, shape: Shape, accumulate: bool) -> Plan | None:
    """See the definition."""
    moved = permuted(split(view(x), apart), dims)
    return _moved(split(view(out), moved.shape), moved, accumulate)


@planned
def concat(out: Any, *xs: Any, dim: int, accumulate: bool) -> Plan | None:
    """See the definition."""
    plans, start = [], 0
    for x in xs:
        stop = start + x.shape[dim]
        plans.append(_moved(view(out[(slice(None),) * dim + (slice(start, stop),)]), view(x), accumulate))
        start = stop
    return _one_by_one(plans)


@planned
def cut(out: Any, x: Any, *, dim: int, start: int, stop: int, accumulate: bool) -> Plan | None:
    """See the definition."""
    return _moved(view(out), view(x[(slice(None),) * dim + (slice(start, stop),)]), accumulate)


def _one_by_one(plans: list[Plan | None]) -> Plan | None:
    """The work of all, where there is one of each."""
    made = [plan for plan in plans if plan is not None]
    if len(made) < len(plans):
        return None
    return all_alike(made)


def _moved(out: View, x: View, accumulate: bool) -> Plan | None:
    """x copied to out bit by bit, or added to it."""
    if not accumulate:
        return each(MOVE, [out], [x], {})
    if _wide(out.array, x.array):
        return each(_ADD_WIDE, [out], [out, x], {})
    return each(_ALONE, [out], [x], {}, True) if takes(out.array, x.array) else None


def _wide(*arrays: Any) -> bool:
    return all(x.dtype.name == "float64" for x in arrays)

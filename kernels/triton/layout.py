"""Copies and rearrangements of arrays of any dtype, fills, and sums of two.

It knows no arithmetic but addition.
"""

from typing import Any

from castile.kernels.triton.codegen import contiguous_steps, elementwise_plan
from castile.kernels.triton.launch import LaunchPlan, Workspace, are_floats, fixed_plan, in_sequence_alike, planned
from castile.kernels.triton.multi_tensor import multi_tensor
from castile.kernels.triton.snippet import COPY, Snippet, snippet
from castile.kernels.triton.views import Shape, View, broadcast, permuted, split_dims, view

_ALONE = snippet("x -> x")
_ADD = snippet("x, y -> x + y")
# In their own dtype, as moments are added in float64.
_ADD_WIDE = Snippet(("x", "y"), (), (), ("x + y",), is_copy=True)
_ZERO = Snippet((), (), (), ("0.0",))


@planned
def copy(out: Any, x: Any, *more: Any, accumulate: bool) -> LaunchPlan | None:
    """See the definition. Several arrays that lie dense are copied by one launch."""
    outs, xs = out if more else (out,), (x, *more)
    if not accumulate:
        return multi_tensor(COPY, outs, xs, 0, {})
    return _one_by_one([_moved(view(to), view(one), True) for to, one in zip(outs, xs, strict=True)])


@planned
def zero(out: Any, *, shape: Shape, dtype: str, accumulate: bool) -> LaunchPlan:
    """See the definition."""
    return fixed_plan() if accumulate else elementwise_plan(_ZERO, [view(out)], [], {})


@planned
def add(out: Any, x: Any, y: Any) -> LaunchPlan | None:
    """See the definition."""
    what = _ADD if are_floats(out, x, y) else _ADD_WIDE if _wide(out, x, y) else None
    return what and elementwise_plan(what, [view(out)], [view(x), broadcast(view(y), x.shape)], {})


@planned
def add_bias(out: Any, x: Any, b: Any, *, dim: int) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, x, b):
        return None
    steps = [0] * x.ndim
    steps[dim] = view(b).steps[0]
    return elementwise_plan(_ADD, [view(out)], [view(x), View(b, tuple(x.shape), tuple(steps))], {})


@planned
def reshape(out: Any, x: Any, *, shape: Shape) -> LaunchPlan | None:
    """See the definition. Where neither lies dense, x passes through memory in which it does."""
    to, source = view(out), view(x)
    if to.steps == contiguous_steps(to.shape):
        return elementwise_plan(COPY, [View(out, source.shape, contiguous_steps(source.shape))], [source], {})
    if source.steps == contiguous_steps(source.shape):
        return elementwise_plan(COPY, [to], [View(x, to.shape, contiguous_steps(to.shape))], {})
    room = Workspace(max(1, x.size), x.dtype.name)
    there = elementwise_plan(COPY, [View(room, source.shape, contiguous_steps(source.shape))], [source], {})
    back = elementwise_plan(COPY, [to], [View(room, to.shape, contiguous_steps(to.shape))], {})
    return in_sequence_alike([there, back])


@planned
def rearrange(out: Any, x: Any, *, apart: Shape, dims: Shape, shape: Shape, accumulate: bool) -> LaunchPlan | None:
    """See the definition."""
    moved = permuted(split_dims(view(x), apart), dims)
    return _moved(split_dims(view(out), moved.shape), moved, accumulate)


@planned
def concat(out: Any, *xs: Any, dim: int, accumulate: bool) -> LaunchPlan | None:
    """See the definition."""
    plans, start = [], 0
    for x in xs:
        stop = start + x.shape[dim]
        plans.append(_moved(view(out[(slice(None),) * dim + (slice(start, stop),)]), view(x), accumulate))
        start = stop
    return _one_by_one(plans)


@planned
def cut(out: Any, x: Any, *, dim: int, start: int, stop: int, accumulate: bool) -> LaunchPlan | None:
    """See the definition."""
    return _moved(view(out), view(x[(slice(None),) * dim + (slice(start, stop),)]), accumulate)


def _one_by_one(plans: list[LaunchPlan | None]) -> LaunchPlan | None:
    """The work of all, where there is one of each."""
    made = [plan for plan in plans if plan is not None]
    if len(made) < len(plans):
        return None
    return in_sequence_alike(made)


def _moved(out: View, x: View, accumulate: bool) -> LaunchPlan | None:
    """x copied to out bit by bit, or added to it."""
    if not accumulate:
        return elementwise_plan(COPY, [out], [x], {})
    if _wide(out.array, x.array):
        return elementwise_plan(_ADD_WIDE, [out], [out, x], {})
    return elementwise_plan(_ALONE, [out], [x], {}, True) if are_floats(out.array, x.array) else None


def _wide(*arrays: Any) -> bool:
    return all(x.dtype.name == "float64" for x in arrays)

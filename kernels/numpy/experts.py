"""Mixtures of experts: places in queues, and tokens moved to the queues of experts and back.

It knows no experts' work. Missing gates are one one, with steps of zero.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.form import prepares
from castile.kernels.ids import OutOfRange
from castile.kernels.numpy.jit import compiled, f32
from castile.kernels.numpy.lanes import after, pointer
from castile.kernels.numpy.views import Scratch, chain, flat

Call = Callable[[], Any]


@prepares
def queue(out: np.ndarray, experts: np.ndarray, *, num_experts: int, capacity: int, scratch: np.ndarray) -> Call | None:
    """See the definition."""
    waiting = Scratch(scratch).take((num_experts,), np.dtype("int64"))
    lain = _lain(out, experts)
    return partial(_queue, *experts.shape, *lain, waiting, capacity) if lain else None


@prepares
def dispatch(
    out: np.ndarray,
    x: np.ndarray,
    experts: np.ndarray,
    slots: np.ndarray,
    *gates: np.ndarray,
    num_experts: int,
    capacity: int,
    first_expert: int,
    first_slot: int,
    accumulate: bool,
) -> Call | None:
    """See the definition."""
    work = _moving(_dispatch, experts, slots, _or_ones(gates, x, experts), x, out, first_expert, first_slot)
    return work if work is None or accumulate else chain([partial(out.fill, 0), work])


@prepares
def combine(
    out: np.ndarray,
    y: np.ndarray,
    experts: np.ndarray,
    slots: np.ndarray,
    *gates: np.ndarray,
    first_expert: int,
    first_slot: int,
    accumulate: bool,
) -> Call | None:
    """See the definition."""
    work = _moving(_combine, experts, slots, _or_ones(gates, y, experts), out, y, first_expert, first_slot)
    return work if work is None or accumulate else chain([partial(out.fill, 0), work])


@prepares
def gate_grad(
    out: np.ndarray,
    dy: np.ndarray,
    y: np.ndarray,
    experts: np.ndarray,
    slots: np.ndarray,
    *,
    first_expert: int,
    first_slot: int,
    accumulate: bool,
) -> Call | None:
    """See the definition."""
    work = _moving(_gate_grad, experts, slots, out, dy, y, first_expert, first_slot)
    return work if work is None or accumulate else chain([partial(out.fill, 0), work])


@prepares
def expert_share(
    out: np.ndarray, experts: np.ndarray, *, num_experts: int, first_expert: int, dtype: str
) -> Call | None:
    """See the definition."""
    lain, held = _lain(experts), _lain(out)
    if lain is None or held is None:
        return None
    count = partial(_count, *experts.shape, *lain, *held, num_experts, first_expert)
    return chain([partial(out.fill, 0), count])


def _or_ones(gates: tuple[np.ndarray, ...], like: np.ndarray, experts: np.ndarray) -> np.ndarray:
    return gates[0] if gates else np.broadcast_to(np.ones((), like.dtype), experts.shape)


def _moving(
    kernel: Callable[..., Any],
    experts: np.ndarray,
    slots: np.ndarray,
    gates: np.ndarray,
    tokens: np.ndarray,
    places: np.ndarray,
    first_expert: int,
    first_slot: int,
) -> Call | None:
    """The work of `kernel` on tokens [b,s,d] and places [e,b,c,d]; None where their rows do not lie dense."""
    if any(x.shape[-1] > 1 and x.strides[-1] != x.itemsize for x in (tokens, places)):
        return None
    lain = _lain(experts, slots, gates, tokens, places)
    sizes = *experts.shape, places.shape[0], places.shape[2], places.shape[3]
    return partial(kernel, *sizes, *lain, first_expert, first_slot) if lain else None


def _lain(*arrays: np.ndarray) -> list[Any] | None:
    """Each array as its elements in memory, and a step for each dim; None for a step that is negative or uneven."""
    if any(step < 0 or step % x.itemsize for x in arrays for step in x.strides):
        return None
    found: list[Any] = []
    for x in arrays:
        steps = [step // x.itemsize for step in x.strides]
        length = 1 + sum((size - 1) * step for size, step in zip(x.shape, steps, strict=True))
        found += [flat(x, 0, length if x.size else 0), *steps]
    return found


@compiled
def _queue(b, s, k, out, ob, os, ok, experts, eb, es, ek, waiting, capacity):  # type: ignore[no-untyped-def]
    for sample in range(b):
        waiting[:] = 0
        for choice in range(k):
            for token in range(s):
                expert = experts[sample * eb + token * es + choice * ek]
                if expert < 0 or expert >= waiting.size:
                    raise OutOfRange("queue: an expert lies outside their number")
                place = waiting[expert]
                out[sample * ob + token * os + choice * ok] = place if place < capacity else -1
                waiting[expert] = place + 1


@compiled
def _dispatch(  # type: ignore[no-untyped-def]
    b, s, k, e, c, d, experts, eb, es, ek, slots, sb, ss, sk, gates, gb, gs, gk, x, xb, xs, xd,
    y, ye, yb, yc, yd, first_expert, first_slot,
):  # fmt: skip
    for sample in range(b):
        for token in range(s):
            v = after(pointer(x), sample * xb + token * xs)
            for choice in range(k):
                expert = experts[sample * eb + token * es + choice * ek] - first_expert
                taken = slots[sample * sb + token * ss + choice * sk]
                slot = taken - first_slot
                if taken >= 0 and 0 <= expert < e and 0 <= slot < c:
                    gate = gates[sample * gb + token * gs + choice * gk]
                    o = after(pointer(y), expert * ye + sample * yb + slot * yc)
                    for j in range(d):
                        o[j] += v[j] * gate


@compiled
def _combine(  # type: ignore[no-untyped-def]
    b, s, k, e, c, d, experts, eb, es, ek, slots, sb, ss, sk, gates, gb, gs, gk, x, xb, xs, xd,
    y, ye, yb, yc, yd, first_expert, first_slot,
):  # fmt: skip
    for sample in range(b):
        for token in range(s):
            o = after(pointer(x), sample * xb + token * xs)
            for choice in range(k):
                expert = experts[sample * eb + token * es + choice * ek] - first_expert
                taken = slots[sample * sb + token * ss + choice * sk]
                slot = taken - first_slot
                if taken >= 0 and 0 <= expert < e and 0 <= slot < c:
                    gate = gates[sample * gb + token * gs + choice * gk]
                    v = after(pointer(y), expert * ye + sample * yb + slot * yc)
                    for j in range(d):
                        o[j] += v[j] * gate


@compiled
def _gate_grad(  # type: ignore[no-untyped-def]
    b, s, k, e, c, d, experts, eb, es, ek, slots, sb, ss, sk, out, ob, os, ok, dy, xb, xs, xd,
    y, ye, yb, yc, yd, first_expert, first_slot,
):  # fmt: skip
    for sample in range(b):
        for token in range(s):
            slope = after(pointer(dy), sample * xb + token * xs)
            for choice in range(k):
                expert = experts[sample * eb + token * es + choice * ek] - first_expert
                taken = slots[sample * sb + token * ss + choice * sk]
                slot = taken - first_slot
                if taken >= 0 and 0 <= expert < e and 0 <= slot < c:
                    v = after(pointer(y), expert * ye + sample * yb + slot * yc)
                    total = v[0] - v[0]
                    for j in range(d):
                        total += slope[j] * v[j]
                    out[sample * ob + token * os + choice * ok] += total


@compiled
def _count(b, s, k, experts, eb, es, ek, out, ob, oe, num_experts, first_expert):  # type: ignore[no-untyped-def]
    for sample in range(b):
        for token in range(s):
            expert = experts[sample * eb + token * es] - first_expert
            if 0 <= expert < num_experts:
                out[sample * ob + expert * oe] += f32(1)
        for expert in range(num_experts):
            out[sample * ob + expert * oe] /= s

"""Mixtures of experts: positions in queues, and tokens moved to the queues of experts and back.

It knows no experts' work. Missing gates are one 1 with steps of 0.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.calls import Call
from castile.kernels.form import prepares
from castile.kernels.ids import OutOfRange
from castile.kernels.numpy.copying import onto_zeros
from castile.kernels.numpy.jit import compiled, f32, inlined
from castile.kernels.numpy.pointers import after, pointer
from castile.kernels.numpy.views import Scratch, has_contiguous_rows, is_forward, strided_operand


@prepares
def queue(out: np.ndarray, experts: np.ndarray, *, num_experts: int, capacity: int, scratch: np.ndarray) -> Call | None:
    """See the definition."""
    if not is_forward(out, experts):
        return None
    waiting = Scratch(scratch).take((num_experts,), np.dtype("int64"))
    return partial(_queue, experts.shape, strided_operand(out), strided_operand(experts), waiting, capacity)


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
    return onto_zeros(work, accumulate, out)


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
    return onto_zeros(work, accumulate, out)


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
    return onto_zeros(work, accumulate, out)


@prepares
def expert_share(
    out: np.ndarray, experts: np.ndarray, *, num_experts: int, first_expert: int, dtype: str
) -> Call | None:
    """See the definition."""
    if not is_forward(out, experts):
        return None
    count = partial(_count, experts.shape, strided_operand(experts), strided_operand(out), num_experts, first_expert)
    return onto_zeros(count, False, out)


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
    arrays = experts, slots, gates, tokens, places
    if not (is_forward(*arrays) and has_contiguous_rows(tokens, places)):
        return None
    first = (first_expert, first_slot)
    return partial(kernel, experts.shape, places.shape, first, *map(strided_operand, arrays))


@inlined
def _at(x, sample, token, choice):  # type: ignore[no-untyped-def]
    """Where the number of a token's choice lies."""
    steps = x[1]
    return after(pointer(x[0]), sample * steps[0] + token * steps[1] + choice * steps[2])


@inlined
def _place(sizes, first, experts, slots, sample, token, choice):  # type: ignore[no-untyped-def]
    """The expert and the slot, of those that are here, to which a token goes by a choice; (-1, -1) for none of them."""
    expert, taken = _at(experts, sample, token, choice)[0] - first[0], _at(slots, sample, token, choice)[0]
    slot = taken - first[1]
    here = taken >= 0 and 0 <= expert < sizes[0] and 0 <= slot < sizes[2]
    return (expert, slot) if here else (-1, -1)


@compiled
def _queue(shape, out, experts, waiting, capacity):  # type: ignore[no-untyped-def]
    for sample in range(shape[0]):
        waiting[:] = 0
        for choice, token in np.ndindex(shape[2], shape[1]):
            expert = _at(experts, sample, token, choice)[0]
            if expert < 0 or expert >= waiting.size:
                raise OutOfRange("queue: an expert lies outside their number")
            place = waiting[expert]
            _at(out, sample, token, choice)[0] = place if place < capacity else -1
            waiting[expert] = place + 1


@compiled
def _dispatch(shape, sizes, first, experts, slots, gates, tokens, places):  # type: ignore[no-untyped-def]
    for sample, token in np.ndindex(shape[0], shape[1]):
        v = _at(tokens, sample, token, 0)
        for choice in range(shape[2]):
            expert, slot = _place(sizes, first, experts, slots, sample, token, choice)
            if expert >= 0:
                o, gate = _at(places, expert, sample, slot), _at(gates, sample, token, choice)[0]
                for j in range(sizes[3]):
                    o[j] += v[j] * gate


@compiled
def _combine(shape, sizes, first, experts, slots, gates, tokens, places):  # type: ignore[no-untyped-def]
    for sample, token in np.ndindex(shape[0], shape[1]):
        o = _at(tokens, sample, token, 0)
        for choice in range(shape[2]):
            expert, slot = _place(sizes, first, experts, slots, sample, token, choice)
            if expert >= 0:
                v, gate = _at(places, expert, sample, slot), _at(gates, sample, token, choice)[0]
                for j in range(sizes[3]):
                    o[j] += v[j] * gate


@compiled
def _gate_grad(shape, sizes, first, experts, slots, out, grads, places):  # type: ignore[no-untyped-def]
    for sample, token in np.ndindex(shape[0], shape[1]):
        u = _at(grads, sample, token, 0)
        for choice in range(shape[2]):
            expert, slot = _place(sizes, first, experts, slots, sample, token, choice)
            if expert >= 0:
                v = _at(places, expert, sample, slot)
                total = v[0] - v[0]
                for j in range(sizes[3]):
                    total += u[j] * v[j]
                _at(out, sample, token, choice)[0] += total


@compiled
def _count(shape, experts, out, num_experts, first_expert):  # type: ignore[no-untyped-def]
    step = out[1]
    for sample in range(shape[0]):
        shares = after(pointer(out[0]), sample * step[0])
        for token in range(shape[1]):
            expert = _at(experts, sample, token, 0)[0] - first_expert
            if 0 <= expert < num_experts:
                shares[expert * step[1]] += f32(1)
        for expert in range(num_experts):
            shares[expert * step[1]] /= shape[1]

"""Mixtures of experts: places in queues, tokens to experts and back, shares of tokens.

It knows no routers. No two choices of a sample have the same place, as `queue` gives them: it writes without sums.
An expert that is out of range, which the definition of `queue` refuses, gets no place.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.functions import block_of_rows, load_rows, offsets, store_rows
from castile.kernels.triton.launch import Launch, LaunchPlan, Workspace, are_floats, planned
from castile.kernels.triton.rows import by_rows
from castile.kernels.triton.views import View, needs_64_bits, power_of_two, view

_BLOCK = 1024


@planned
def queue(out: Any, experts: Any, *, num_experts: int, capacity: int) -> LaunchPlan | None:
    """See the definition."""
    batch, tokens, choices = experts.shape
    if not out.size:
        return LaunchPlan((None,), lambda _: [])
    if needs_64_bits([view(out), view(experts)]):
        return None
    args = (out, view(out).steps, experts, view(experts).steps, tokens, choices, num_experts, capacity)
    across = min(_BLOCK, power_of_two(tokens))
    # Each expert looks at all choices of a sample, which are few beside the tokens that they send.
    launch = Launch(_queue, (batch, num_experts), args, {"BLOCK": across}, max(1, across // 256))
    return LaunchPlan((None,), lambda _: [launch])


@planned
def expert_share(out: Any, experts: Any, *, num_experts: int, first_expert: int, dtype: str) -> LaunchPlan | None:
    """See the definition."""
    tokens = experts.shape[1]
    if not are_floats(out) or needs_64_bits([view(experts)]):
        return None
    args = (out, view(out).steps, experts, view(experts).steps[:2], tokens, first_expert)
    across = min(_BLOCK, power_of_two(tokens))
    launch = Launch(_expert_share, (experts.shape[0], num_experts), args, {"BLOCK": across}, max(1, across // 256))
    return LaunchPlan((None,), lambda _: [launch] if out.size else [])


@planned
def dispatch(
    out: Any,
    x: Any,
    experts: Any,
    slots: Any,
    *gates: Any,
    num_experts: int,
    capacity: int,
    first_expert: int,
    first_slot: int,
    accumulate: bool,
) -> LaunchPlan | None:
    """See the definition. First every place learns which choice comes there, then it fetches its token."""
    batch, tokens, choices = experts.shape
    if not are_floats(out, x, *gates) or needs_64_bits([view(experts), view(slots)]):
        return None
    num, many = num_experts * batch * capacity, experts.size
    if num == 0:
        return LaunchPlan((None,), lambda _: [])
    sources = Workspace(num, "int32")
    gate = gates[0] if gates else x
    how = view(gate).steps
    numbers = (tokens, choices, *view(x).steps[:2], *how, len(gates), int(accumulate))
    vectors = [View(x, x.shape[-1:], view(x).steps[-1:])]
    moved = by_rows(_fetched, [view(out)], [], vectors, (gate, sources), numbers, flops=1)
    if moved is None:
        return None
    args = (sources, experts, view(experts).steps, slots, view(slots).steps, batch, tokens, choices)
    where = (num_experts, capacity, first_expert, first_slot, many)
    marks = [
        Launch(_none, (-(-num // _BLOCK),), (sources, num), {"BLOCK": _BLOCK}),
        Launch(_sources, (-(-max(1, many) // _BLOCK),), (*args, *where), {"BLOCK": _BLOCK}),
    ]
    return LaunchPlan(moved.settings, lambda setting: [*marks, *moved.launches(setting)])


@planned
def combine(
    out: Any, y: Any, experts: Any, slots: Any, *gates: Any, first_expert: int, first_slot: int, accumulate: bool
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, y, *gates):
        return None
    gate = gates[0] if gates else experts
    given = [experts, slots, gate]
    numbers = (*_blocks(y, experts, first_expert, first_slot), *(view(one).steps[2] for one in given))
    vectors = [View(y, y.shape[-1:], view(y).steps[-1:])]
    bare = [view(one[..., 0]) for one in given]
    numbers = (*numbers, len(gates), int(accumulate))
    return by_rows(_combine, [view(out)], bare, vectors, (), numbers, *_costs(out, experts))


@planned
def gate_grad(
    out: Any, dy: Any, y: Any, experts: Any, slots: Any, *, first_expert: int, first_slot: int, accumulate: bool
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, dy, y):
        return None
    given = [out, experts, slots]
    numbers = (*_blocks(y, experts, first_expert, first_slot), *(view(one).steps[2] for one in given))
    vectors = [View(y, y.shape[-1:], view(y).steps[-1:])]
    bare = [view(one[..., 0]) for one in given]
    return by_rows(_gate_grad, [view(dy)], bare, vectors, (), (*numbers, int(accumulate)), *_costs(dy, experts))


def _blocks(y: Any, experts: Any, first_expert: int, first_slot: int) -> tuple[int, ...]:
    """What finds a token's places in y: tokens, choices, steps and sizes of y, and where it begins."""
    return (*experts.shape[1:], *view(y).steps[:3], y.shape[0], y.shape[2], first_expert, first_slot)


def _costs(tokens: Any, experts: Any) -> tuple[int, int]:
    """Operations on an element of tokens, of which each meets one of y for each choice, and the bytes of all."""
    choices = experts.shape[2]
    return 2 * choices, (choices + 1) * tokens.size * tokens.itemsize + 2 * experts.size * experts.itemsize


@triton.jit
def _queue(out, s_out, experts, s_experts, tokens, choices, num_experts, capacity, BLOCK: tl.constexpr):
    sample, expert = tl.program_id(0).to(tl.int64), tl.program_id(1)
    waiting = expert * 0
    for choice in range(choices):
        for start in range(0, tokens, BLOCK):
            token = start + tl.arange(0, BLOCK)
            here = token < tokens
            place = experts + sample * s_experts[0] + choice * s_experts[2] + token * s_experts[1]
            named = tl.load(place, mask=here, other=-1).to(tl.int64)
            mine = (here & (named == expert)).to(tl.int32)
            slot = waiting + tl.cumsum(mine, 0) - 1
            lost = (expert == 0) & ((named < 0) | (named >= num_experts))
            value = tl.where((mine > 0) & (slot < capacity), slot, -1)
            place = out + sample * s_out[0] + choice * s_out[2] + token * s_out[1]
            tl.store(place, value, mask=here & ((mine > 0) | lost))
            waiting += tl.sum(mine, 0)


@triton.jit
def _expert_share(out, s_out, experts, s_experts, tokens, first_expert, BLOCK: tl.constexpr):
    sample, expert = tl.program_id(0).to(tl.int64), tl.program_id(1)
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, tokens, BLOCK):
        token = start + tl.arange(0, BLOCK)
        place = experts + sample * s_experts[0] + token * s_experts[1]
        named = tl.load(place, mask=token < tokens, other=0).to(tl.int64) - first_expert
        total += ((token < tokens) & (named == expert)).to(tl.int32)
    share = tl.sum(total, 0).to(tl.float32) / tokens
    tl.store(out + sample * s_out[0] + expert * s_out[1], share.to(out.dtype.element_ty))


@triton.jit
def _none(sources, num, BLOCK: tl.constexpr):
    one = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sources + one, tl.full((BLOCK,), -1, tl.int32), mask=one < num)


@triton.jit
def _sources(sources, experts, s_experts, slots, s_slots, batch, tokens, choices, num_experts, capacity,
             first_expert, first_slot, num, BLOCK: tl.constexpr):  # fmt: skip
    one = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = one < num
    sample, token, choice = one // choices // tokens, one // choices % tokens, one % choices
    place = sample * s_experts[0] + token * s_experts[1] + choice * s_experts[2]
    expert = tl.load(experts + place, mask=here, other=0).to(tl.int32) - first_expert
    place = sample * s_slots[0] + token * s_slots[1] + choice * s_slots[2]
    found = tl.load(slots + place, mask=here, other=-1).to(tl.int32)
    slot = found - first_slot
    there = here & (found >= 0) & (expert >= 0) & (expert < num_experts) & (slot >= 0) & (slot < capacity)
    tl.store(sources + (expert * batch + sample) * capacity + slot, one, mask=there)


@triton.jit
def _fetched(out, s_out, x, gates, sources, rows, lead, tokens, choices, b_x, s_x, b_gates, s_gates, k_gates,
             weighs, adds, t_out: tl.constexpr, t_x: tl.constexpr,
             NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += offsets(row, lead, s_out)
    source = tl.load(sources + row, mask=here, other=-1).to(tl.int64)
    taken = here & (source >= 0)
    sample, token, choice = source // choices // tokens, source // choices % tokens, source % choices
    share = tl.full((ROWS,), 1.0, tl.float32)
    if weighs:
        place = gates + sample * b_gates + token * s_gates + choice * k_gates
        share = tl.load(place, mask=taken, other=0.0).to(tl.float32)
    x += sample * b_x + token * s_x
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        value = load_rows(x, col, t_x, mask & taken[:, None], 0.0) * share[:, None]
        if adds:
            value += load_rows(out, col, t_out, mask, 0.0)
        store_rows(out, col, t_out, value, mask)


@triton.jit
def _found(experts, slots, here, sample, e_y, b_y, c_y, num_experts, capacity, first_expert, first_slot):
    """Where in y the rows lie that choices name, and which of them are there."""
    expert = tl.load(experts, mask=here, other=0).to(tl.int64) - first_expert
    number = tl.load(slots, mask=here, other=-1).to(tl.int64)
    slot = number - first_slot
    there = here & (number >= 0) & (expert >= 0) & (expert < num_experts) & (slot >= 0) & (slot < capacity)
    return expert * e_y + sample * b_y + slot * c_y, there


@triton.jit
def _combine(out, s_out, experts, s_experts, slots, s_slots, gates, s_gates, y, rows, lead, tokens, choices, e_y, b_y,
             c_y, num_experts, capacity, first_expert, first_slot, k_experts, k_slots, k_gates, weighs, adds,
             t_out: tl.constexpr, t_y: tl.constexpr,
             NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += offsets(row, lead, s_out)
    experts += offsets(row, lead, s_experts)
    slots += offsets(row, lead, s_slots)
    gates += offsets(row, lead, s_gates)
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for choice in range(choices):
            place, there = _found(experts + choice * k_experts, slots + choice * k_slots, here, row // tokens,
                                  e_y, b_y, c_y, num_experts, capacity, first_expert, first_slot)  # fmt: skip
            value = load_rows(y + place, col, t_y, mask & there[:, None], 0.0)
            if weighs:
                value *= tl.load(gates + choice * k_gates, mask=here, other=0.0).to(tl.float32)[:, None]
            total += value
        if adds:
            total += load_rows(out, col, t_out, mask, 0.0)
        store_rows(out, col, t_out, total, mask)


@triton.jit
def _gate_grad(dy, s_dy, out, s_out, experts, s_experts, slots, s_slots, y, rows, lead, tokens, choices, e_y, b_y,
               c_y, num_experts, capacity, first_expert, first_slot, k_out, k_experts, k_slots, adds,
               t_dy: tl.constexpr, t_y: tl.constexpr,
               NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    dy += offsets(row, lead, s_dy)
    out += offsets(row, lead, s_out)
    experts += offsets(row, lead, s_experts)
    slots += offsets(row, lead, s_slots)
    for choice in range(choices):
        place, there = _found(experts + choice * k_experts, slots + choice * k_slots, here, row // tokens,
                              e_y, b_y, c_y, num_experts, capacity, first_expert, first_slot)  # fmt: skip
        total = tl.zeros((ROWS,), tl.float32)
        for start in range(0, NUM, BLOCK):
            col, mask = block_of_rows(here, start, NUM, BLOCK)
            value = load_rows(y + place, col, t_y, mask & there[:, None], 0.0)
            total += tl.sum(value * load_rows(dy, col, t_dy, mask, 0.0), 1)
        if adds:
            total += tl.load(out + choice * k_out, mask=here, other=0.0).to(tl.float32)
        tl.store(out + choice * k_out, total.to(out.dtype.element_ty), mask=here)

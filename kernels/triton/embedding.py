"""Embedding lookup, and the table's gradient, in which each row is summed in the order of the ids (deterministic).

It knows no words. An out-of-range id, which the definition refuses, gives a row of NaN and no gradient.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any, NamedTuple

import triton
from triton import language as tl

from castile.kernels.triton.codegen import elementwise_plan
from castile.kernels.triton.functions import block_of_rows, offsets, store_rows
from castile.kernels.triton.launch import Launch, LaunchPlan, Workspace, are_floats, planned
from castile.kernels.triton.rows import by_rows
from castile.kernels.triton.snippet import Snippet
from castile.kernels.triton.views import View, loop_nest, permuted, power_of_two, view

# Integers are put into so many queues by their last digits, each of which is looked through for equal ones.
_QUEUES = 256
# Integers that one program counts and puts into queues at least; the most programs; and those looked at at once.
_SPAN, _CHUNKS, _AT_ONCE = 256, 256, 128
_ZERO = Snippet((), (), (), ("0.0",))


class Summing(NamedTuple):
    """How rows of a gradient are summed: rows that are read at once, and columns and warps of a program."""

    rows: int
    cols: int
    warps: int


@planned
def embedding(out: Any, ids: Any, table: Any, *, first: int, known: int) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, table):
        return None
    step, across = view(table).steps
    vectors = [View(table, (table.shape[1],), (across,))]
    nbytes = 2 * out.size * out.itemsize + ids.size * ids.itemsize
    numbers = (step, table.shape[0], first, known)
    return by_rows(_embedding, [view(out)], [view(ids)], vectors, numbers=numbers, nbytes=nbytes)


@planned
def embedding_grad(
    out: Any, dy: Any, ids: Any, *, rows: int, first: int, known: int, accumulate: bool
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, dy):
        return None
    each_row = permuted(view(dy), tuple(range(len(dy.shape) - 1)))
    return table_grad(out, dy, each_row, ids, None, rows, first, 1.0, accumulate)


def table_grad(
    out: Any,
    dy: Any,
    each_row: View,
    ids: Any,
    weights: Any | None,
    rows: int,
    begin: int,
    scale: float,
    accumulate: bool,
) -> LaunchPlan | None:
    """The gradient to rows of a table: each is scale times the sum of the rows of dy whose integers name it.

    begin     the number of the first of them
    each_row  where for each integer its row of dy begins
    weights   one for each integer; all 1 where None

    Integers are sorted by their last digits, in their order where these are equal (Knuth 1973, distribution counting),
    so that equal ones are found among few; the first of equal ones sums. None for more than 32 bits can count.
    """
    gate = ids if weights is None else weights
    walk = loop_nest([each_row, view(ids), view(gate)])
    cols, num = dy.shape[-1], walk.extent
    blank = LaunchPlan((None,), lambda _: []) if accumulate else elementwise_plan(_ZERO, [view(out)], [], {})
    if out.size == 0 or num == 0:
        return blank
    if max(num, begin + rows) >= 2**31:
        return None
    span = -(-max(_SPAN, -(-num // _CHUNKS)) // _AT_ONCE) * _AT_ONCE
    chunks = -(-num // span)
    tallies, begins, order, named = (Workspace(size, "int32") for size in (chunks * _QUEUES, _QUEUES + 1, num, num))
    given = (ids, walk.steps[1], walk.sizes, num, span, rows, begin)
    sizes = {"QUEUES": _QUEUES, "IDS": _AT_ONCE}
    sorting = [
        Launch(_tally, (chunks,), (tallies, *given), sizes),
        Launch(_queue, (chunks,), (tallies, begins, order, named, *given, chunks), sizes),
    ]
    args = (out, *view(out).steps, dy, walk.steps[0], view(dy).steps[-1], gate, walk.steps[2], walk.sizes, cols, scale)
    how = {"QUEUES": _QUEUES, "WEIGHS": weights is not None, "ADDS": accumulate}

    def launches(one: Summing) -> list[Launch]:
        block = {"ROWS": one.rows, "COLS": min(one.cols, power_of_two(cols))}
        warps = max(1, one.warps * block["COLS"] // one.cols)
        grid = (num, -(-cols // block["COLS"]))
        operands = (begins, order, named, *args)
        flops = 2 * num * cols
        summing = Launch(_table_grad, grid, operands, block | how, warps, flops=flops)
        return [*blank.launches(blank.settings[0]), *sorting, summing]

    # Of one integer that most are, few rows at once take long; of many different ones, many leave programs idle.
    return LaunchPlan((Summing(16, 1024, 8), Summing(8, 1024, 4), Summing(16, 512, 4), Summing(32, 1024, 16)), launches)


@triton.jit
def _embedding(out, s_out, ids, s_ids, table, rows, lead, step, length, first, known, t_out: tl.constexpr,
               t_table: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += offsets(row, lead, s_out)
    number = tl.load(ids + offsets(row, lead, s_ids), mask=here, other=0).to(tl.int64)
    blank = tl.where((number >= 0) & (number < known), 0.0, float("nan"))
    number -= first
    found = here & (number >= 0) & (number < length)
    table += number * step
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        value = tl.load(table[:, None] + col * t_table, mask=mask & found[:, None], other=blank[:, None])
        store_rows(out, col, t_out, value, mask)


@triton.jit
def _known(ids, s_ids, lead, at, num, rows, begin):
    """Which of the rows the integers at these places of a walk name; less than 0 for none, and where there are none.

    What names no row goes into all queues too: where rows are some of many, most do.
    """
    number = tl.load(ids + offsets(at.to(tl.int64), lead, s_ids), mask=at < num, other=-1).to(tl.int64) - begin
    return tl.where((number >= 0) & (number < rows), number, -1 - (number & 0xFFFF)).to(tl.int32)


@triton.jit
def _sort(number, QUEUES: tl.constexpr):
    return tl.where(number < 0, -1 - number, number) % QUEUES


@triton.jit
def _tally(tallies, ids, s_ids, lead, num, span, rows, begin, QUEUES: tl.constexpr, IDS: tl.constexpr):
    chunk = tl.program_id(0)
    count = tl.zeros((QUEUES,), tl.int32)
    for start in range(chunk * span, tl.minimum(chunk * span + span, num), IDS):
        at = start + tl.arange(0, IDS)
        number = _known(ids, s_ids, lead, at, num, rows, begin)
        count += tl.histogram(_sort(number, QUEUES), QUEUES, mask=at < num)
    tl.store(tallies + chunk * QUEUES + tl.arange(0, QUEUES), count)


@triton.jit
def _queue(tallies, begins, order, named, ids, s_ids, lead, num, span, rows, begin, chunks,
           QUEUES: tl.constexpr, IDS: tl.constexpr):  # fmt: skip
    chunk = tl.program_id(0)
    queue = tl.arange(0, QUEUES)
    total = tl.zeros((QUEUES,), tl.int32)
    before = tl.zeros((QUEUES,), tl.int32)
    for start in range(0, chunks, 16):
        other = start + tl.arange(0, 16)[:, None]
        count = tl.load(tallies + other * QUEUES + queue[None, :], mask=other < chunks, other=0)
        total += tl.sum(count, 0)
        before += tl.sum(tl.where(other < chunk, count, 0), 0)
    place = tl.cumsum(total, 0) - total
    tl.store(begins + queue, place, mask=chunk == 0)
    tl.store(begins + QUEUES, num, mask=chunk == 0)
    place += before
    for start in range(chunk * span, tl.minimum(chunk * span + span, num), IDS):
        at = start + tl.arange(0, IDS)
        number = _known(ids, s_ids, lead, at, num, rows, begin)
        mine = _sort(number, QUEUES)
        same = (mine[:, None] == mine[None, :]) & (at[None, :] < at[:, None])
        to = tl.gather(place, mine, 0) + tl.sum(same.to(tl.int32), 1)
        tl.store(order + to, at, mask=at < num)
        tl.store(named + to, number, mask=at < num)
        place += tl.histogram(mine, QUEUES, mask=at < num)


@triton.jit
def _table_grad(begins, order, named, out, s_out, t_out, dy, s_dy, t_dy, weights, s_weights, lead, cols, scale,
                QUEUES: tl.constexpr, WEIGHS: tl.constexpr, ADDS: tl.constexpr, ROWS: tl.constexpr,
                COLS: tl.constexpr):  # fmt: skip
    first = tl.program_id(0)
    number = tl.load(named + first)
    queue = _sort(number, QUEUES)
    start, end = tl.load(begins + queue), tl.load(begins + queue + 1)
    alone = number >= 0
    while alone & (start < first):
        at = start + tl.arange(0, ROWS)
        alone = tl.max((tl.load(named + at, mask=at < first, other=-1) == number).to(tl.int32), 0) == 0
        start += ROWS
    if alone:
        col = (tl.program_id(1) * COLS + tl.arange(0, COLS))[None, :]
        total = tl.zeros((COLS,), tl.float32)
        for begin in range(first, end, ROWS):
            at = begin + tl.arange(0, ROWS)
            hit = tl.load(named + at, mask=at < end, other=-1) == number
            # Most in a queue are others: what they name is not read.
            if tl.max(hit.to(tl.int32), 0) > 0:
                one = tl.load(order + at, mask=hit, other=0).to(tl.int64)
                place = dy + offsets(one, lead, s_dy)[:, None] + col * t_dy
                grad = tl.load(place, mask=hit[:, None] & (col < cols), other=0.0).to(tl.float32)
                if WEIGHS:
                    share = tl.load(weights + offsets(one, lead, s_weights), mask=hit, other=0.0)
                    grad *= share.to(tl.float32)[:, None]
                total += tl.sum(grad, 0)
        total *= scale
        col = tl.program_id(1) * COLS + tl.arange(0, COLS)
        place = out + number.to(tl.int64) * s_out + col * t_out
        if ADDS:
            total += tl.load(place, mask=col < cols, other=0.0).to(tl.float32)
        tl.store(place, total.to(out.dtype.element_ty), mask=col < cols)

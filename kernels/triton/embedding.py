"""Rows of a table at integers, and the gradient to the table, each row of which one program sums in order.

It knows no words. An integer that is out of range, which the definition refuses, gives a row of NaN, and no gradient.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any, NamedTuple

import triton
from triton import language as tl

from castile.kernels.triton.functions import block, places, put
from castile.kernels.triton.launch import Launch, Plan, planned, takes
from castile.kernels.triton.rows import by_rows
from castile.kernels.triton.views import View, nest, permuted, power_of_two, view


class Sweep(NamedTuple):
    """How a gradient is summed: rows and columns of a program's piece of the table, and integers looked at at once."""

    rows: int
    cols: int
    ids: int
    warps: int


@planned
def embedding(out: Any, ids: Any, table: Any) -> Plan | None:
    """See the definition."""
    if not takes(out, table):
        return None
    step, across = view(table).steps
    vectors = [View(table, (table.shape[1],), (across,))]
    nbytes = 2 * out.size * out.itemsize + ids.size * ids.itemsize
    return by_rows(_embedding, [view(out)], [view(ids)], vectors, numbers=(step, table.shape[0]), nbytes=nbytes)


@planned
def embedding_grad(out: Any, dy: Any, ids: Any, *, rows: int, accumulate: bool) -> Plan | None:
    """See the definition."""
    if not takes(out, dy):
        return None
    wide = width_for(dy)
    settings = Sweep(16, wide, 128, 4), Sweep(32, wide, 128, 4), Sweep(16, wide, 64, 4)
    each = permuted(view(dy), tuple(range(len(dy.shape) - 1)))
    return table_grad(out, dy, each, ids, None, rows, 1.0, accumulate, settings)


def width_for(dy: Any) -> int:
    """Columns of a program's piece of a table whose gradients are these."""
    return max(16, min(128, power_of_two(dy.shape[-1])))


def table_grad(
    out: Any, dy: Any, each: View, ids: Any, weights: Any | None, rows: int, scale: float, accumulate: bool,
    settings: tuple[Sweep, ...],
) -> Plan:  # fmt: skip
    """The gradient to a table: each row is scale times the sum of the rows of dy whose integers name it.

    each      where for each integer its row of dy begins
    weights   one for each integer; all 1 where None
    """
    gate = ids if weights is None else weights
    walk = nest([each, view(ids), view(gate)])
    cols = dy.shape[-1]
    if out.size == 0 or (walk.extent == 0 and accumulate):
        return Plan((None,), lambda _: [])
    args = (out, *view(out).steps, dy, walk.steps[0], view(dy).steps[-1], ids, walk.steps[1])
    shares = (gate, walk.steps[2], walk.extent, walk.sizes, rows, cols, scale)

    def launches(sweep: Sweep) -> list[Launch]:
        sizes = {"ROWS": sweep.rows, "COLS": sweep.cols, "IDS": sweep.ids}
        how = {"WEIGHS": weights is not None, "ADDS": accumulate}
        grid = (-(-rows // sweep.rows), -(-cols // sweep.cols))
        flops = 2 * walk.extent * cols
        return [Launch(_table_grad, grid, (*args, *shares), sizes | how, sweep.warps, flops=flops)]

    return Plan(settings, launches)


@triton.jit
def _embedding(out, s_out, ids, s_ids, table, rows, lead, step, known, t_out: tl.constexpr, t_table: tl.constexpr,
               NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += places(row, lead, s_out)
    number = tl.load(ids + places(row, lead, s_ids), mask=here, other=0).to(tl.int64)
    found = here & (number >= 0) & (number < known)
    table += number * step
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        value = tl.load(table[:, None] + col * t_table, mask=mask & found[:, None], other=float("nan"))
        put(out, col, t_out, value, mask)


@triton.jit
def _table_grad(out, s_out, t_out, dy, s_dy, t_dy, ids, s_ids, weights, s_weights, num_ids, lead, rows, cols, scale,
                ROWS: tl.constexpr, COLS: tl.constexpr, IDS: tl.constexpr, WEIGHS: tl.constexpr,
                ADDS: tl.constexpr):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * ROWS
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    in_cols = (col < cols)[None, :]
    row = first + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, num_ids, IDS):
        one = start + tl.arange(0, IDS).to(tl.int64)
        number = tl.load(ids + places(one, lead, s_ids), mask=one < num_ids, other=-1).to(tl.int64)
        hit = (number >= first) & (number < first + ROWS)
        # Most rows of a table are named by few integers: what is not, is not read.
        if tl.max(hit.to(tl.int32), 0) > 0:
            at = dy + places(one, lead, s_dy)[:, None] + col[None, :] * t_dy
            slope = tl.load(at, mask=hit[:, None] & in_cols, other=0.0)
            if WEIGHS:
                share = tl.load(weights + places(one, lead, s_weights), mask=hit, other=0.0).to(tl.float32)
                slope = slope.to(tl.float32) * share[:, None]
            which = (number[None, :] == row[:, None]).to(slope.dtype)
            total = tl.dot(which, slope, total, input_precision="ieee")
    total *= scale
    at = out + row[:, None] * s_out + col[None, :] * t_out
    mask = (row < rows)[:, None] & in_cols
    if ADDS:
        total += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=mask)

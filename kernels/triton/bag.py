"""Embedding bags: sums of the table's rows that a bag of ids names, and the gradients of table and weights.

It knows no features. An out-of-range id, which the definition refuses, gives NaN and no gradient.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.embedding import table_grad
from castile.kernels.triton.functions import block_of_rows, load_rows, offsets, store_rows
from castile.kernels.triton.launch import LaunchPlan, are_floats, planned
from castile.kernels.triton.rows import by_rows
from castile.kernels.triton.views import View, view


@planned
def embedding_bag(
    out: Any, ids: Any, table: Any, *weights: Any, scale: float, first: int, known: int
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, table, *weights):
        return None
    step, across = view(table).steps
    given = [ids, weights[0] if weights else ids]
    numbers = (ids.shape[-1], *(view(one).steps[-1] for one in given), step, table.shape[0], first, known)
    numbers = (*numbers, len(weights), scale)
    nbytes = (ids.shape[-1] + 1) * out.size * out.itemsize + ids.size * ids.itemsize
    vectors = [View(table, (table.shape[1],), (across,))]
    bare = [view(one[..., 0]) for one in given]
    return by_rows(_bag, [view(out)], bare, vectors, (), numbers, 2 * ids.shape[-1], nbytes)


@planned
def embedding_bag_weights_grad(
    out: Any, dy: Any, ids: Any, table: Any, *, scale: float, first: int, known: int
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, dy, table):
        return None
    step, across = view(table).steps
    given = [out, ids]
    numbers = (ids.shape[-1], *(view(one).steps[-1] for one in given), step, table.shape[0], first, known)
    nbytes = (ids.shape[-1] + 1) * dy.size * dy.itemsize + ids.size * ids.itemsize
    vectors = [View(table, (table.shape[1],), (across,))]
    bare = [view(one[..., 0]) for one in given]
    return by_rows(_weights_grad, [view(dy)], bare, vectors, (), (*numbers, scale), 2 * ids.shape[-1], nbytes)


@planned
def embedding_bag_grad(
    out: Any, dy: Any, ids: Any, *weights: Any, rows: int, scale: float, first: int, known: int, accumulate: bool
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, dy, *weights):
        return None
    each_row = View(dy, tuple(ids.shape), (*view(dy).steps[:-1], 0))
    return table_grad(out, dy, each_row, ids, weights[0] if weights else None, rows, first, scale, accumulate)


@triton.jit
def _bag(out, s_out, ids, s_ids, weights, s_weights, table, rows, lead, count, k_ids, k_weights, step, length, first,
         known, weighs, scale, t_out: tl.constexpr, t_table: tl.constexpr,
         NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += offsets(row, lead, s_out)
    ids += offsets(row, lead, s_ids)
    weights += offsets(row, lead, s_weights)
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for number in range(count):
            named = tl.load(ids + number * k_ids, mask=here, other=0).to(tl.int64)
            blank = tl.where((named >= 0) & (named < known), 0.0, float("nan"))
            named -= first
            found = here & (named >= 0) & (named < length)
            value = load_rows(table + named * step, col, t_table, mask & found[:, None], 0.0) + blank[:, None]
            if weighs:
                value *= tl.load(weights + number * k_weights, mask=found, other=0.0).to(tl.float32)[:, None]
            total += value
        store_rows(out, col, t_out, total * scale, mask)


@triton.jit
def _weights_grad(dy, s_dy, out, s_out, ids, s_ids, table, rows, lead, count, k_out, k_ids, step, length, first,
                  known, scale, t_dy: tl.constexpr, t_table: tl.constexpr,
                  NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    dy += offsets(row, lead, s_dy)
    out += offsets(row, lead, s_out)
    ids += offsets(row, lead, s_ids)
    for number in range(count):
        named = tl.load(ids + number * k_ids, mask=here, other=0).to(tl.int64)
        blank = tl.where((named >= 0) & (named < known), 0.0, float("nan"))
        named -= first
        found = here & (named >= 0) & (named < length)
        # A row that is there in place of one that is not: masks of each would take registers.
        named = tl.where(found, named, 0)
        total = tl.zeros((ROWS,), tl.float32)
        for start in range(0, NUM, BLOCK):
            col, mask = block_of_rows(here, start, NUM, BLOCK)
            value = load_rows(table + named * step, col, t_table, mask & (length > 0), 0.0)
            total += tl.sum(value * load_rows(dy, col, t_dy, mask, 0.0), 1)
        total = tl.where(found, total, blank) * scale
        tl.store(out + number * k_out, total.to(out.dtype.element_ty), mask=here)

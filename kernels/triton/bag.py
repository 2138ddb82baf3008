"""Sums of rows of a table at the integers of bags, and the gradients to the table and to the weights.

It knows no features. An integer that is out of range, which the definition refuses, gives NaN, and no gradient.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.functions import block, fetch, places, put
from castile.kernels.triton.launch import Launch, Plan, planned, takes
from castile.kernels.triton.rows import by_rows
from castile.kernels.triton.views import View, nest, power_of_two, view


@planned
def embedding_bag(out: Any, ids: Any, table: Any, *weights: Any, scale: float) -> Plan | None:
    """See the definition."""
    if not takes(out, table, *weights):
        return None
    step, across = view(table).steps
    given = [ids, weights[0] if weights else ids]
    numbers = (ids.shape[-1], *(view(one).steps[-1] for one in given), step, table.shape[0], len(weights), scale)
    nbytes = (ids.shape[-1] + 1) * out.size * out.itemsize + ids.size * ids.itemsize
    vectors = [View(table, (table.shape[1],), (across,))]
    bare = [view(one[..., 0]) for one in given]
    return by_rows(_bag, [view(out)], bare, vectors, (), numbers, 2 * ids.shape[-1], nbytes)


@planned
def embedding_bag_weights_grad(out: Any, dy: Any, ids: Any, table: Any, *, scale: float) -> Plan | None:
    """See the definition."""
    if not takes(out, dy, table):
        return None
    step, across = view(table).steps
    given = [out, ids]
    numbers = (ids.shape[-1], *(view(one).steps[-1] for one in given), step, table.shape[0], scale)
    nbytes = (ids.shape[-1] + 1) * dy.size * dy.itemsize + ids.size * ids.itemsize
    vectors = [View(table, (table.shape[1],), (across,))]
    bare = [view(one[..., 0]) for one in given]
    return by_rows(_weights_grad, [view(dy)], bare, vectors, (), numbers, 2 * ids.shape[-1], nbytes)


@planned
def embedding_bag_grad(
    out: Any, dy: Any, ids: Any, *weights: Any, rows: int, scale: float, accumulate: bool
) -> Plan | None:
    """See the definition. A program sums some rows of the table, and reads of dy what its rows need."""
    if not takes(out, dy, *weights):
        return None
    cols, last = dy.shape[-1], len(dy.shape) - 1
    steps = view(dy).steps
    bags = View(dy, tuple(ids.shape), (*steps[:last], 0))
    walk = nest([bags, view(ids), view(weights[0] if weights else ids)])
    if out.size == 0 or (walk.extent == 0 and accumulate):
        return Plan((None,), lambda _: [])
    gate = weights[0] if weights else dy
    args = (out, *view(out).steps, dy, walk.steps[0], steps[last], ids, walk.steps[1], gate, walk.steps[2])
    numbers = (walk.extent, walk.sizes, rows, cols, scale)

    def launches(sweep: tuple[int, int, int, int]) -> list[Launch]:
        down, across, many, warps = sweep
        sizes = {"ROWS": down, "COLS": across, "IDS": many, "WEIGHS": bool(weights), "ADDS": accumulate}
        grid = (-(-rows // down), -(-cols // across))
        return [Launch(_bag_grad, grid, (*args, *numbers), sizes, warps, flops=2 * walk.extent * cols)]

    wide = max(16, min(128, power_of_two(cols)))
    few, many = (16, wide, 64, 4), (128, min(64, wide), 64, 8)
    # Every program looks at all integers: of a long table it takes more rows.
    return Plan((few, many, (16, wide, 128, 8)) if rows < 2**16 else (many, (64, wide, 64, 8), few), launches)


@triton.jit
def _bag(out, s_out, ids, s_ids, weights, s_weights, table, rows, lead, count, k_ids, k_weights, step, known, weighs,
         scale, t_out: tl.constexpr, t_table: tl.constexpr,
         NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += places(row, lead, s_out)
    ids += places(row, lead, s_ids)
    weights += places(row, lead, s_weights)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for number in range(count):
            named = tl.load(ids + number * k_ids, mask=here, other=0).to(tl.int64)
            found = here & (named >= 0) & (named < known)
            value = fetch(table + named * step, col, t_table, mask & found[:, None], float("nan"))
            if weighs:
                value *= tl.load(weights + number * k_weights, mask=here, other=0.0).to(tl.float32)[:, None]
            total += value
        put(out, col, t_out, total * scale, mask)


@triton.jit
def _weights_grad(dy, s_dy, out, s_out, ids, s_ids, table, rows, lead, count, k_out, k_ids, step, known, scale,
                  t_dy: tl.constexpr, t_table: tl.constexpr,
                  NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    dy += places(row, lead, s_dy)
    out += places(row, lead, s_out)
    ids += places(row, lead, s_ids)
    for number in range(count):
        named = tl.load(ids + number * k_ids, mask=here, other=0).to(tl.int64)
        found = here & (named >= 0) & (named < known)
        total = tl.zeros((ROWS,), tl.float32)
        for start in range(0, NUM, BLOCK):
            col, mask = block(here, start, NUM, BLOCK)
            value = fetch(table + named * step, col, t_table, mask & found[:, None], 0.0)
            total += tl.sum(value * fetch(dy, col, t_dy, mask, 0.0), 1)
        total = tl.where(found, total * scale, float("nan"))
        tl.store(out + number * k_out, total.to(out.dtype.element_ty), mask=here)


@triton.jit
def _bag_grad(out, s_out, t_out, dy, s_dy, t_dy, ids, s_ids, weights, s_weights, num_ids, lead, rows, cols, scale,
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
            near = tl.where(hit, number - first, -1).to(tl.int32)
            which = (near[None, :] == tl.arange(0, ROWS)[:, None]).to(slope.dtype)
            total = tl.dot(which, slope, total, input_precision="ieee")
    total *= scale
    at = out + row[:, None] * s_out + col[None, :] * t_out
    mask = (row < rows)[:, None] & in_cols
    if ADDS:
        total += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=mask)

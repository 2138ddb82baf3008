"""The largest elements of rows, elements at places of rows, and the way back.

It knows no routers. A place that is out of range, which the definition refuses, gives NaN, and no gradient.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.functions import block_of_rows, load_rows, offsets, store_rows
from castile.kernels.triton.launch import LaunchPlan, are_floats, planned
from castile.kernels.triton.rows import by_rows
from castile.kernels.triton.views import view

# Beyond so many elements a row a sort would pay, which Triton has of powers of two only.
_MOST = 64


@planned
def top_k(out: tuple[Any, Any], x: Any, *, count: int) -> LaunchPlan | None:
    """See the definition. Each element costs one pass over the row: None where they are many."""
    values, at = out
    if not are_floats(values, x) or count > _MOST:
        return None
    bare = [view(values[..., 0]), view(at[..., 0])]
    numbers = (count, view(values).steps[-1], view(at).steps[-1])
    return by_rows(_top_k, [view(x)], bare, numbers=numbers, flops=5 * count)


@planned
def pick(out: Any, x: Any, at: Any) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, x):
        return None
    numbers = (view(x).steps[-1], x.shape[-1])
    nbytes = 2 * out.size * out.itemsize + at.size * at.itemsize
    return by_rows(_pick, [view(out), view(at)], [view(x[..., 0])], numbers=numbers, nbytes=nbytes)


@planned
def pick_grad(out: Any, dy: Any, at: Any, *, size: int, accumulate: bool) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, dy):
        return None
    count = at.shape[-1]
    numbers = (count, view(dy).steps[-1], view(at).steps[-1], int(accumulate))
    return by_rows(_pick_grad, [view(out)], [view(dy[..., 0]), view(at[..., 0])], numbers=numbers, flops=2 * count)


@triton.jit
def _top_k(x, s_x, out, s_out, at, s_at, rows, lead, count, k_out, k_at, t_x: tl.constexpr,
           NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    x += offsets(row, lead, s_x)
    out += offsets(row, lead, s_out)
    at += offsets(row, lead, s_at)
    last = tl.full((ROWS,), float("inf"), tl.float32)
    place = tl.full((ROWS,), -1, tl.int32)
    for number in range(count):
        best = tl.full((ROWS,), float("-inf"), tl.float32)
        found = tl.full((ROWS,), NUM, tl.int32)
        for start in range(0, NUM, BLOCK):
            col, mask = block_of_rows(here, start, NUM, BLOCK)
            v = load_rows(x, col, t_x, mask, float("-inf"))
            # What is left comes after the last one: it is smaller, or as large and further on.
            after = (v < last[:, None]) | ((v == last[:, None]) & (col > place[:, None]))
            left = mask & after
            most = tl.max(tl.where(left, v, float("-inf")), 1)
            first = tl.min(tl.where(left & (v == most[:, None]), col, NUM), 1)
            found = tl.where((most > best) | (found == NUM), first, found)
            best = tl.maximum(best, most)
        last, place = best, found
        # Nothing is left where what is left is no number.
        value = tl.where(found < NUM, last, float("nan"))
        tl.store(out + number * k_out, value.to(out.dtype.element_ty), mask=here)
        tl.store(at + number * k_at, place, mask=here)


@triton.jit
def _pick(out, s_out, at, s_at, x, s_x, rows, lead, step, known, t_out: tl.constexpr, t_at: tl.constexpr,
          NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += offsets(row, lead, s_out)
    at += offsets(row, lead, s_at)
    x += offsets(row, lead, s_x)
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        place = tl.load(at[:, None] + col * t_at, mask=mask, other=0).to(tl.int64)
        there = mask & (place >= 0) & (place < known)
        store_rows(out, col, t_out, tl.load(x[:, None] + place * step, mask=there, other=float("nan")), mask)


@triton.jit
def _pick_grad(out, s_out, dy, s_dy, at, s_at, rows, lead, count, k_dy, k_at, adds, t_out: tl.constexpr,
               NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += offsets(row, lead, s_out)
    dy += offsets(row, lead, s_dy)
    at += offsets(row, lead, s_at)
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for number in range(count):
            place = tl.load(at + number * k_at, mask=here, other=-1).to(tl.int64)
            grad = tl.load(dy + number * k_dy, mask=here, other=0.0).to(tl.float32)
            total += tl.where(col == place[:, None], grad[:, None], 0.0)
        if adds:
            total += load_rows(out, col, t_out, mask, 0.0)
        store_rows(out, col, t_out, total, mask)

"""Softmax and log-softmax over the last dim, and their gradients.

It knows no loss.
"""

# mypy: disable-error-code="no-untyped-def, assignment"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.functions import LOG2_E, load_rows, offsets, row_block, row_edges, row_starts, store_rows
from castile.kernels.triton.launch import LaunchPlan, are_floats, planned
from castile.kernels.triton.rows import by_rows
from castile.kernels.triton.views import view

# Of what is masked the largest element is the least number: less it, minus infinity is no NaN.
_LEAST = tl.constexpr(-3.4028234e38)


@planned
def softmax(out: Any, x: Any) -> LaunchPlan | None:
    """See the definition."""
    return _rows(_softmax, False, out, x)


@planned
def softmax_grad(out: Any, dy: Any, y: Any) -> LaunchPlan | None:
    """See the definition."""
    return _rows(_softmax_grad, False, out, dy, y)


@planned
def log_softmax(out: Any, x: Any) -> LaunchPlan | None:
    """See the definition."""
    return _rows(_softmax, True, out, x)


@planned
def log_softmax_grad(out: Any, dy: Any, y: Any) -> LaunchPlan | None:
    """See the definition."""
    return _rows(_softmax_grad, True, out, dy, y)


def _rows(kernel: Any, log: bool, *arrays: Any) -> LaunchPlan | None:
    if not are_floats(*arrays):
        return None
    return by_rows(kernel, [*map(view, arrays)], [], flops=4, own={"LOG": log}, in_blocks=kernel is _softmax)


@triton.jit
def max_and_sum(x, here, skew, t_x: tl.constexpr, SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
                BLOCK: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """The largest element of each row, and the sum of exp(element - largest).

    Long rows keep one such pair for every eight elements of a block (online softmax), joined at the end, which saves
    exponentials and synchronisation. Where columns are not contiguous a thread handles four blocks at once.
    """
    if NUM <= BLOCK and not SKEW:
        at, mask = row_block(here, skew, 0, SKEW, NUM, BLOCK)
        v = load_rows(x, at, t_x, mask, float("-inf"))
        top = tl.max(v, 1)
        return top, tl.sum(tl.exp(v - top[:, None]), 1)
    elif t_x != 1:
        tops = tl.full((ROWS, BLOCK), _LEAST, tl.float32)
        totals = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in tl.range(0, NUM, 4 * BLOCK, num_stages=STAGES):
            higher, v = tops, ()
            for n in tl.static_range(4):
                at, mask = row_block(here, skew, start + n * BLOCK, SKEW, NUM, BLOCK)
                v += (load_rows(x, at, t_x, mask, float("-inf")),)
                higher = tl.maximum(higher, v[n])
            totals *= tl.exp(tops - higher)
            for n in tl.static_range(4):
                totals += tl.exp(v[n] - higher)
            tops = higher
        top = tl.max(tops, 1)
        return top, tl.sum(totals * tl.exp(tops - top[:, None]), 1)
    else:
        tops = tl.full((ROWS, BLOCK // 8), _LEAST, tl.float32)
        totals = tl.zeros((ROWS, BLOCK // 8), tl.float32)
        for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
            at, mask = row_block(here, skew, start, SKEW, NUM, BLOCK)
            v = tl.reshape(load_rows(x, at, t_x, mask, float("-inf")), (ROWS, BLOCK // 8, 8))
            higher = tl.maximum(tops, tl.max(v, 2))
            totals = totals * tl.exp(tops - higher) + tl.sum(tl.exp(v - higher[:, :, None]), 2)
            tops = higher
        top = tl.max(tops, 1)
        if SKEW:
            end, near = row_edges(here, skew, NUM)
            v = load_rows(x, end, t_x, near, float("-inf"))
            top = tl.maximum(top, tl.max(v, 1))
            total = tl.sum(tl.exp(v - top[:, None]), 1)
            return top, total + tl.sum(totals * tl.exp(tops - top[:, None]), 1)
        else:
            return top, tl.sum(totals * tl.exp(tops - top[:, None]), 1)


@triton.jit
def _normalize(out, x, at, mask, less, share, t_out: tl.constexpr, t_x: tl.constexpr, LOG: tl.constexpr):
    v = load_rows(x, at, t_x, mask, float("-inf")) - less[:, None]
    store_rows(out, at, t_out, v if LOG else tl.exp(v) * share[:, None], mask)


@triton.jit
def _softmax(out, s_out, x, s_x, rows, lead, t_out: tl.constexpr, t_x: tl.constexpr, LOG: tl.constexpr,
             SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
             STAGES: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out, _ = row_starts(out, offsets(row, lead, s_out), SKEW)
    x, skew = row_starts(x, offsets(row, lead, s_x), SKEW)
    if NUM > BLOCK and STAGES * BLOCK >= NUM + 7 * SKEW:
        _softmax_in_registers(out, x, here, skew, t_out, t_x, LOG, SKEW, NUM, ROWS, BLOCK, STAGES)
    else:
        less, total = max_and_sum(x, here, skew, t_x, SKEW, NUM, ROWS, BLOCK, STAGES)
        if LOG:
            less += tl.log(total)
        share = 1.0 / total
        if SKEW:
            end, near = row_edges(here, skew, NUM)
            _normalize(out, x, end, near, less, share, t_out, t_x, LOG)
        for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
            at, mask = row_block(here, skew, start, SKEW, NUM, BLOCK)
            _normalize(out, x, at, mask, less, share, t_out, t_x, LOG)


@triton.jit
def _softmax_in_registers(out, x, here, skew, t_out: tl.constexpr, t_x: tl.constexpr, LOG: tl.constexpr,
                          SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
                          NUM_BLOCKS: tl.constexpr):  # fmt: skip
    """Rows that are loaded once and whose exponentials are computed once: they stay in registers."""
    held = ()
    for n in tl.static_range(NUM_BLOCKS):
        at, mask = row_block(here, skew, n * BLOCK, SKEW, NUM, BLOCK)
        if _is_inner(n, SKEW, NUM, ROWS, BLOCK):
            held += (tl.load(x[:, None] + at * t_x),)
        else:
            held += (tl.load(x[:, None] + at * t_x, mask=mask, other=float("-inf")),)
    tops = tl.full((ROWS, BLOCK), float("-inf"), tl.float32)
    for n in tl.static_range(NUM_BLOCKS):
        tops = tl.maximum(tops, held[n].to(tl.float32))
    top = tl.max(tops, 1)
    if SKEW:
        end, near = row_edges(here, skew, NUM)
        ends = load_rows(x, end, t_x, near, float("-inf"))
        top = tl.maximum(top, tl.max(ends, 1))
    low = top * LOG2_E
    kept, totals = (), tl.zeros((ROWS, BLOCK), tl.float32)
    for n in tl.static_range(NUM_BLOCKS):
        power = _exp2(held[n], low)
        totals += power
        kept += (held[n] if LOG else power,)
    total = tl.sum(totals, 1)
    if SKEW:
        total += tl.sum(_exp2(ends, low), 1)
    less, share = top + tl.log(total), 1.0 / total
    for n in tl.static_range(NUM_BLOCKS):
        at, mask = row_block(here, skew, n * BLOCK, SKEW, NUM, BLOCK)
        v = kept[n].to(tl.float32) - less[:, None] if LOG else kept[n] * share[:, None]
        if _is_inner(n, SKEW, NUM, ROWS, BLOCK):
            tl.store(out[:, None] + at * t_out, v.to(out.dtype.element_ty))
        else:
            store_rows(out, at, t_out, v, mask)
    if SKEW:
        store_rows(out, end, t_out, ends - less[:, None] if LOG else _exp2(ends, low) * share[:, None], near)


@triton.jit
def _exp2(x, low):
    """2 ** (x / ln 2 - low), `low` one number a row: its rounding scales all exponentials of the row alike."""
    return tl.exp2(x.to(tl.float32) * LOG2_E - low[:, None])


@triton.constexpr_function
def _is_inner(n, skew, num, rows, block):
    """Whether a row's block exists completely, wherever the row begins within 16 bytes."""
    return rows == 1 and (n > 0 or not skew) and (n + 1) * block <= num // 8 * 8


@triton.jit
def _partial_dot(dy, y, at, mask, t_dy: tl.constexpr, t_y: tl.constexpr, LOG: tl.constexpr):
    grad = load_rows(dy, at, t_dy, mask, 0.0)
    return tl.sum(grad if LOG else grad * load_rows(y, at, t_y, mask, 0.0), 1)


@triton.jit
def _grad(out, dy, y, at, mask, total, t_out: tl.constexpr, t_dy: tl.constexpr, t_y: tl.constexpr,
          LOG: tl.constexpr):  # fmt: skip
    v = load_rows(y, at, t_y, mask, 0.0)
    grad = load_rows(dy, at, t_dy, mask, 0.0)
    store_rows(out, at, t_out, grad - tl.exp(v) * total[:, None] if LOG else v * (grad - total[:, None]), mask)


@triton.jit
def _softmax_grad(out, s_out, dy, s_dy, y, s_y, rows, lead, t_out: tl.constexpr, t_dy: tl.constexpr,
                  t_y: tl.constexpr, LOG: tl.constexpr, SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
                  BLOCK: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out, _ = row_starts(out, offsets(row, lead, s_out), SKEW)
    dy, _ = row_starts(dy, offsets(row, lead, s_dy), SKEW)
    y, skew = row_starts(y, offsets(row, lead, s_y), SKEW)
    total = tl.zeros((ROWS,), tl.float32)
    if SKEW:
        end, near = row_edges(here, skew, NUM)
        total += _partial_dot(dy, y, end, near, t_dy, t_y, LOG)
    for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
        at, mask = row_block(here, skew, start, SKEW, NUM, BLOCK)
        total += _partial_dot(dy, y, at, mask, t_dy, t_y, LOG)
    for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
        at, mask = row_block(here, skew, start, SKEW, NUM, BLOCK)
        _grad(out, dy, y, at, mask, total, t_out, t_dy, t_y, LOG)
    # Last, for what is fetched after anything was written is no longer what was held.
    if SKEW:
        end, near = row_edges(here, skew, NUM)
        _grad(out, dy, y, end, near, total, t_out, t_dy, t_y, LOG)

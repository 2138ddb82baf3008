"""The softmax over the last dim, its logarithm and their gradients.

It knows no loss.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.functions import begun, edges, fetch, places, put, run
from castile.kernels.triton.launch import Plan, planned, takes
from castile.kernels.triton.rows import by_rows
from castile.kernels.triton.views import view


@planned
def softmax(out: Any, x: Any) -> Plan | None:
    """See the definition."""
    return by_rows(_softmax, [view(out), view(x)], [], flops=5) if takes(out, x) else None


@planned
def softmax_grad(out: Any, dy: Any, y: Any) -> Plan | None:
    """See the definition."""
    return by_rows(_softmax_grad, [view(out), view(dy), view(y)], [], flops=4) if takes(out, dy, y) else None


@planned
def log_softmax(out: Any, x: Any) -> Plan | None:
    """See the definition."""
    return by_rows(_log_softmax, [view(out), view(x)], [], flops=4) if takes(out, x) else None


@planned
def log_softmax_grad(out: Any, dy: Any, y: Any) -> Plan | None:
    """See the definition."""
    return by_rows(_log_softmax_grad, [view(out), view(dy), view(y)], [], flops=4) if takes(out, dy, y) else None


@triton.jit
def top_and_total(x, here, skew, t_x: tl.constexpr, SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
                  BLOCK: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """The largest element of each row and the sum of e to each element less that, for rows that are `begun`.

    Of long rows each eight elements of a block have such numbers of their own, which meet at the end: exponentials and
    waiting of threads for each other are fewer.
    """
    if NUM <= BLOCK and not SKEW:
        at, mask = run(here, skew, 0, SKEW, NUM, BLOCK)
        v = fetch(x, at, t_x, mask, float("-inf"))
        top = tl.max(v, 1)
        return top, tl.sum(tl.exp(v - top[:, None]), 1)
    else:
        # Of what is masked the largest element is the least number: less it, minus infinity is no NaN.
        tops = tl.full((ROWS, BLOCK // 8), -3.4028234e38, tl.float32)
        totals = tl.zeros((ROWS, BLOCK // 8), tl.float32)
        for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
            at, mask = run(here, skew, start, SKEW, NUM, BLOCK)
            v = tl.reshape(fetch(x, at, t_x, mask, float("-inf")), (ROWS, BLOCK // 8, 8))
            higher = tl.maximum(tops, tl.max(v, 2))
            totals = totals * tl.exp(tops - higher) + tl.sum(tl.exp(v - higher[:, :, None]), 2)
            tops = higher
        top = tl.max(tops, 1)
        if SKEW:
            end, near = edges(here, skew, NUM)
            v = fetch(x, end, t_x, near, float("-inf"))
            top = tl.maximum(top, tl.max(v, 1))
            total = tl.sum(tl.exp(v - top[:, None]), 1)
            return top, total + tl.sum(totals * tl.exp(tops - top[:, None]), 1)
        else:
            return top, tl.sum(totals * tl.exp(tops - top[:, None]), 1)


@triton.jit
def _soft(out, x, at, mask, top, total, t_out: tl.constexpr, t_x: tl.constexpr):
    v = fetch(x, at, t_x, mask, float("-inf"))
    put(out, at, t_out, tl.exp(v - top[:, None]) / total[:, None], mask)


@triton.jit
def _softmax(out, s_out, x, s_x, rows, lead, t_out: tl.constexpr, t_x: tl.constexpr, SKEW: tl.constexpr,
             NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out, _ = begun(out, places(row, lead, s_out), SKEW)
    x, skew = begun(x, places(row, lead, s_x), SKEW)
    top, total = top_and_total(x, here, skew, t_x, SKEW, NUM, ROWS, BLOCK, STAGES)
    if SKEW:
        end, near = edges(here, skew, NUM)
        _soft(out, x, end, near, top, total, t_out, t_x)
    for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
        at, mask = run(here, skew, start, SKEW, NUM, BLOCK)
        _soft(out, x, at, mask, top, total, t_out, t_x)


@triton.jit
def _softmax_slope(out, dy, y, at, mask, inner, t_out: tl.constexpr, t_dy: tl.constexpr, t_y: tl.constexpr):
    value = fetch(y, at, t_y, mask, 0.0) * (fetch(dy, at, t_dy, mask, 0.0) - inner[:, None])
    put(out, at, t_out, value, mask)


@triton.jit
def _softmax_grad(out, s_out, dy, s_dy, y, s_y, rows, lead, t_out: tl.constexpr, t_dy: tl.constexpr,
                  t_y: tl.constexpr, SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
                  STAGES: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out, _ = begun(out, places(row, lead, s_out), SKEW)
    dy, _ = begun(dy, places(row, lead, s_dy), SKEW)
    y, skew = begun(y, places(row, lead, s_y), SKEW)
    inner = tl.zeros((ROWS,), tl.float32)
    if SKEW:
        end, near = edges(here, skew, NUM)
        inner += tl.sum(fetch(dy, end, t_dy, near, 0.0) * fetch(y, end, t_y, near, 0.0), 1)
    for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
        at, mask = run(here, skew, start, SKEW, NUM, BLOCK)
        inner += tl.sum(fetch(dy, at, t_dy, mask, 0.0) * fetch(y, at, t_y, mask, 0.0), 1)
    if SKEW:
        end, near = edges(here, skew, NUM)
        _softmax_slope(out, dy, y, end, near, inner, t_out, t_dy, t_y)
    for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
        at, mask = run(here, skew, start, SKEW, NUM, BLOCK)
        _softmax_slope(out, dy, y, at, mask, inner, t_out, t_dy, t_y)


@triton.jit
def _log_soft(out, x, at, mask, less, t_out: tl.constexpr, t_x: tl.constexpr):
    v = fetch(x, at, t_x, mask, float("-inf"))
    put(out, at, t_out, v - less[:, None], mask)


@triton.jit
def _log_softmax(out, s_out, x, s_x, rows, lead, t_out: tl.constexpr, t_x: tl.constexpr, SKEW: tl.constexpr,
                 NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out, _ = begun(out, places(row, lead, s_out), SKEW)
    x, skew = begun(x, places(row, lead, s_x), SKEW)
    top, total = top_and_total(x, here, skew, t_x, SKEW, NUM, ROWS, BLOCK, STAGES)
    less = top + tl.log(total)
    if SKEW:
        end, near = edges(here, skew, NUM)
        _log_soft(out, x, end, near, less, t_out, t_x)
    for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
        at, mask = run(here, skew, start, SKEW, NUM, BLOCK)
        _log_soft(out, x, at, mask, less, t_out, t_x)


@triton.jit
def _log_slope(out, dy, y, at, mask, total, t_out: tl.constexpr, t_dy: tl.constexpr, t_y: tl.constexpr):
    share = tl.exp(fetch(y, at, t_y, mask, 0.0))
    put(out, at, t_out, fetch(dy, at, t_dy, mask, 0.0) - share * total[:, None], mask)


@triton.jit
def _log_softmax_grad(out, s_out, dy, s_dy, y, s_y, rows, lead, t_out: tl.constexpr, t_dy: tl.constexpr,
                      t_y: tl.constexpr, SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
                      BLOCK: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out, _ = begun(out, places(row, lead, s_out), SKEW)
    dy, _ = begun(dy, places(row, lead, s_dy), SKEW)
    y, skew = begun(y, places(row, lead, s_y), SKEW)
    total = tl.zeros((ROWS,), tl.float32)
    if SKEW:
        end, near = edges(here, skew, NUM)
        total += tl.sum(fetch(dy, end, t_dy, near, 0.0), 1)
    for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
        at, mask = run(here, skew, start, SKEW, NUM, BLOCK)
        total += tl.sum(fetch(dy, at, t_dy, mask, 0.0), 1)
    if SKEW:
        end, near = edges(here, skew, NUM)
        _log_slope(out, dy, y, end, near, total, t_out, t_dy, t_y)
    for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
        at, mask = run(here, skew, start, SKEW, NUM, BLOCK)
        _log_slope(out, dy, y, at, mask, total, t_out, t_dy, t_y)

"""The softmax over the last dim, its logarithm and their gradients.

It knows no loss.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.functions import block, fetch, places, put
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
def top_and_total(x, here, t_x: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest element of each row and the sum of e to each element less that; x points to where rows begin."""
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        v = fetch(x, col, t_x, mask, float("-inf"))
        higher = tl.maximum(top, tl.max(v, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(v - higher[:, None]), 1)
        top = higher
    return top, total


@triton.jit
def _softmax(out, s_out, x, s_x, rows, lead, t_out: tl.constexpr, t_x: tl.constexpr,
             NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += places(row, lead, s_out)
    x += places(row, lead, s_x)
    top, total = top_and_total(x, here, t_x, NUM, ROWS, BLOCK)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        v = fetch(x, col, t_x, mask, float("-inf"))
        put(out, col, t_out, tl.exp(v - top[:, None]) / total[:, None], mask)


@triton.jit
def _softmax_grad(out, s_out, dy, s_dy, y, s_y, rows, lead, t_out: tl.constexpr, t_dy: tl.constexpr,
                  t_y: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += places(row, lead, s_out)
    dy += places(row, lead, s_dy)
    y += places(row, lead, s_y)
    inner = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        inner += tl.sum(fetch(dy, col, t_dy, mask, 0.0) * fetch(y, col, t_y, mask, 0.0), 1)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        value = fetch(y, col, t_y, mask, 0.0) * (fetch(dy, col, t_dy, mask, 0.0) - inner[:, None])
        put(out, col, t_out, value, mask)


@triton.jit
def _log_softmax(out, s_out, x, s_x, rows, lead, t_out: tl.constexpr, t_x: tl.constexpr,
                 NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += places(row, lead, s_out)
    x += places(row, lead, s_x)
    top, total = top_and_total(x, here, t_x, NUM, ROWS, BLOCK)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        v = fetch(x, col, t_x, mask, float("-inf"))
        put(out, col, t_out, v - top[:, None] - tl.log(total)[:, None], mask)


@triton.jit
def _log_softmax_grad(out, s_out, dy, s_dy, y, s_y, rows, lead, t_out: tl.constexpr, t_dy: tl.constexpr,
                      t_y: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += places(row, lead, s_out)
    dy += places(row, lead, s_dy)
    y += places(row, lead, s_y)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        total += tl.sum(fetch(dy, col, t_dy, mask, 0.0), 1)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        share = tl.exp(fetch(y, col, t_y, mask, 0.0))
        put(out, col, t_out, fetch(dy, col, t_dy, mask, 0.0) - share * total[:, None], mask)

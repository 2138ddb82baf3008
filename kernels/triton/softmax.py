"""The softmax over the last dim, its logarithm and their gradients.

It knows no loss.
"""

# mypy: disable-error-code="no-untyped-def, assignment"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.functions import LOG2_E, begun, edges, fetch, places, put, run
from castile.kernels.triton.launch import Plan, planned, takes
from castile.kernels.triton.rows import by_rows
from castile.kernels.triton.views import view

# Of what is masked the largest element is the least number: less it, minus infinity is no NaN.
_LEAST = tl.constexpr(-3.4028234e38)


@planned
def softmax(out: Any, x: Any) -> Plan | None:
    """See the definition."""
    return _rows(_softmax, False, out, x)


@planned
def softmax_grad(out: Any, dy: Any, y: Any) -> Plan | None:
    """See the definition."""
    return _rows(_softmax_grad, False, out, dy, y)


@planned
def log_softmax(out: Any, x: Any) -> Plan | None:
    """See the definition."""
    return _rows(_softmax, True, out, x)


@planned
def log_softmax_grad(out: Any, dy: Any, y: Any) -> Plan | None:
    """See the definition."""
    return _rows(_softmax_grad, True, out, dy, y)


def _rows(kernel: Any, log: bool, *arrays: Any) -> Plan | None:
    if not takes(*arrays):
        return None
    return by_rows(kernel, [*map(view, arrays)], [], flops=4, own={"LOG": log}, in_blocks=kernel is _softmax)


@triton.jit
def top_and_total(x, here, skew, t_x: tl.constexpr, SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
                  BLOCK: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """The largest element of each row and the sum of e to each element less that, for rows that are `begun`.

    Of long rows each eight elements of a block have such numbers of their own, which meet at the end: exponentials and
    waiting of threads for each other are fewer. Of rows that lie side by side a thread does so with four blocks at
    once.
    """
    if NUM <= BLOCK and not SKEW:
        at, mask = run(here, skew, 0, SKEW, NUM, BLOCK)
        v = fetch(x, at, t_x, mask, float("-inf"))
        top = tl.max(v, 1)
        return top, tl.sum(tl.exp(v - top[:, None]), 1)
    elif t_x != 1:
        tops = tl.full((ROWS, BLOCK), _LEAST, tl.float32)
        totals = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in tl.range(0, NUM, 4 * BLOCK, num_stages=STAGES):
            higher, v = tops, ()
            for n in tl.static_range(4):
                at, mask = run(here, skew, start + n * BLOCK, SKEW, NUM, BLOCK)
                v += (fetch(x, at, t_x, mask, float("-inf")),)
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
def _soft(out, x, at, mask, less, share, t_out: tl.constexpr, t_x: tl.constexpr, LOG: tl.constexpr):
    v = fetch(x, at, t_x, mask, float("-inf")) - less[:, None]
    put(out, at, t_out, v if LOG else tl.exp(v) * share[:, None], mask)


@triton.jit
def _softmax(out, s_out, x, s_x, rows, lead, t_out: tl.constexpr, t_x: tl.constexpr, LOG: tl.constexpr,
             SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
             STAGES: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out, _ = begun(out, places(row, lead, s_out), SKEW)
    x, skew = begun(x, places(row, lead, s_x), SKEW)
    if NUM > BLOCK and STAGES * BLOCK >= NUM + 7 * SKEW:
        _held(out, x, here, skew, t_out, t_x, LOG, SKEW, NUM, ROWS, BLOCK, STAGES)
    else:
        less, total = top_and_total(x, here, skew, t_x, SKEW, NUM, ROWS, BLOCK, STAGES)
        if LOG:
            less += tl.log(total)
        share = 1.0 / total
        if SKEW:
            end, near = edges(here, skew, NUM)
            _soft(out, x, end, near, less, share, t_out, t_x, LOG)
        for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
            at, mask = run(here, skew, start, SKEW, NUM, BLOCK)
            _soft(out, x, at, mask, less, share, t_out, t_x, LOG)


@triton.jit
def _held(out, x, here, skew, t_out: tl.constexpr, t_x: tl.constexpr, LOG: tl.constexpr, SKEW: tl.constexpr,
          NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, NUM_BLOCKS: tl.constexpr):  # fmt: skip
    """Rows that are read once, and each exponential worked out once: what a row is made of is held in its place."""
    held = ()
    for n in tl.static_range(NUM_BLOCKS):
        at, mask = run(here, skew, n * BLOCK, SKEW, NUM, BLOCK)
        if _is_inner(n, SKEW, NUM, ROWS, BLOCK):
            held += (tl.load(x[:, None] + at * t_x),)
        else:
            held += (tl.load(x[:, None] + at * t_x, mask=mask, other=float("-inf")),)
    tops = tl.full((ROWS, BLOCK), float("-inf"), tl.float32)
    for n in tl.static_range(NUM_BLOCKS):
        tops = tl.maximum(tops, held[n].to(tl.float32))
    top = tl.max(tops, 1)
    if SKEW:
        end, near = edges(here, skew, NUM)
        ends = fetch(x, end, t_x, near, float("-inf"))
        top = tl.maximum(top, tl.max(ends, 1))
    low = top * LOG2_E
    kept, totals = (), tl.zeros((ROWS, BLOCK), tl.float32)
    for n in tl.static_range(NUM_BLOCKS):
        power = _power(held[n], low)
        totals += power
        kept += (held[n] if LOG else power,)
    total = tl.sum(totals, 1)
    if SKEW:
        total += tl.sum(_power(ends, low), 1)
    less, share = top + tl.log(total), 1.0 / total
    for n in tl.static_range(NUM_BLOCKS):
        at, mask = run(here, skew, n * BLOCK, SKEW, NUM, BLOCK)
        v = kept[n].to(tl.float32) - less[:, None] if LOG else kept[n] * share[:, None]
        if _is_inner(n, SKEW, NUM, ROWS, BLOCK):
            tl.store(out[:, None] + at * t_out, v.to(out.dtype.element_ty))
        else:
            put(out, at, t_out, v, mask)
    if SKEW:
        put(out, end, t_out, ends - less[:, None] if LOG else _power(ends, low) * share[:, None], near)


@triton.jit
def _power(x, low):
    """2 to the x / ln 2 less `low`, a row's: by what that is rounded all powers of the row change alike."""
    return tl.exp2(x.to(tl.float32) * LOG2_E - low[:, None])


@triton.constexpr_function
def _is_inner(n, skew, num, rows, block):
    """Whether all of a row's block of that number is there, wherever in 16 bytes the row begins."""
    return rows == 1 and (n > 0 or not skew) and (n + 1) * block <= num // 8 * 8


@triton.jit
def _part(dy, y, at, mask, t_dy: tl.constexpr, t_y: tl.constexpr, LOG: tl.constexpr):
    slope = fetch(dy, at, t_dy, mask, 0.0)
    return tl.sum(slope if LOG else slope * fetch(y, at, t_y, mask, 0.0), 1)


@triton.jit
def _slope(out, dy, y, at, mask, total, t_out: tl.constexpr, t_dy: tl.constexpr, t_y: tl.constexpr,
           LOG: tl.constexpr):  # fmt: skip
    v = fetch(y, at, t_y, mask, 0.0)
    slope = fetch(dy, at, t_dy, mask, 0.0)
    put(out, at, t_out, slope - tl.exp(v) * total[:, None] if LOG else v * (slope - total[:, None]), mask)


@triton.jit
def _softmax_grad(out, s_out, dy, s_dy, y, s_y, rows, lead, t_out: tl.constexpr, t_dy: tl.constexpr,
                  t_y: tl.constexpr, LOG: tl.constexpr, SKEW: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
                  BLOCK: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out, _ = begun(out, places(row, lead, s_out), SKEW)
    dy, _ = begun(dy, places(row, lead, s_dy), SKEW)
    y, skew = begun(y, places(row, lead, s_y), SKEW)
    total = tl.zeros((ROWS,), tl.float32)
    if SKEW:
        end, near = edges(here, skew, NUM)
        total += _part(dy, y, end, near, t_dy, t_y, LOG)
    for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
        at, mask = run(here, skew, start, SKEW, NUM, BLOCK)
        total += _part(dy, y, at, mask, t_dy, t_y, LOG)
    for start in tl.range(0, NUM + 7 * SKEW, BLOCK, num_stages=STAGES):
        at, mask = run(here, skew, start, SKEW, NUM, BLOCK)
        _slope(out, dy, y, at, mask, total, t_out, t_dy, t_y, LOG)
    # Last, for what is fetched after anything was written is no longer what was held.
    if SKEW:
        end, near = edges(here, skew, NUM)
        _slope(out, dy, y, end, near, total, t_out, t_dy, t_y, LOG)

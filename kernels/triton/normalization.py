"""Layer and root mean square normalisation over the last dim and their gradients.

It knows no other statistics.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.functions import block, fetch, fetch_vector, places, put
from castile.kernels.triton.launch import Plan, planned, takes
from castile.kernels.triton.lines import folded, text
from castile.kernels.triton.rows import by_rows
from castile.kernels.triton.views import Shape, View, view

_LAYER_SUMS = text("dy, x, mean, rstd -> dy * (x - mean) * rstd; dy")
_RMS_SUMS = text("dy, x, rstd -> dy * x * rstd")


@planned
def layer_norm(out: tuple[Any, Any, Any], x: Any, g: Any, b: Any, *, eps: float) -> Plan | None:
    """See the definition."""
    if not takes(*out, x, g, b):
        return None
    y, mean, rstd = map(view, out)
    return by_rows(_layer_norm, [y, view(x)], [mean, rstd], [view(g), view(b)], numbers=(eps,), flops=8)


@planned
def layer_norm_grad_input(out: Any, dy: Any, x: Any, g: Any, mean: Any, rstd: Any, onto: Any = None) -> Plan | None:
    """See the definition."""
    kernel, more = (_layer_norm_grad, ()) if onto is None else (_layer_norm_grad_onto, (onto,))
    if not takes(out, dy, x, g, mean, rstd, *more):
        return None
    return by_rows(kernel, [*map(view, (out, dy, x, *more))], [view(mean), view(rstd)], [view(g)], flops=11)


@planned
def layer_norm_grad_params(
    out: tuple[Any, Any], dy: Any, x: Any, mean: Any, rstd: Any, *, accumulate: bool
) -> Plan | None:
    """See the definition."""
    if not takes(*out, dy, x, mean, rstd):
        return None
    xs = [view(dy), view(x), _along(mean, x.shape), _along(rstd, x.shape)]
    return folded(_LAYER_SUMS, [*map(view, out)], xs, tuple(range(x.ndim - 1)), {}, adds=accumulate)


@planned
def rms_norm(out: tuple[Any, Any], x: Any, g: Any, *, eps: float) -> Plan | None:
    """See the definition."""
    if not takes(*out, x, g):
        return None
    return by_rows(_rms_norm, [view(out[0]), view(x)], [view(out[1])], [view(g)], numbers=(eps,), flops=4)


@planned
def rms_norm_grad_input(out: Any, dy: Any, x: Any, g: Any, rstd: Any, onto: Any = None) -> Plan | None:
    """See the definition."""
    kernel, more = (_rms_norm_grad, ()) if onto is None else (_rms_norm_grad_onto, (onto,))
    if not takes(out, dy, x, g, rstd, *more):
        return None
    return by_rows(kernel, [*map(view, (out, dy, x, *more))], [view(rstd)], [view(g)], flops=8)


@planned
def rms_norm_grad_params(out: Any, dy: Any, x: Any, rstd: Any, *, accumulate: bool) -> Plan | None:
    """See the definition."""
    if not takes(out, dy, x, rstd):
        return None
    xs = [view(dy), view(x), _along(rstd, x.shape)]
    return folded(_RMS_SUMS, [view(out)], xs, tuple(range(x.ndim - 1)), {}, adds=accumulate)


def _along(one: Any, shape: Shape) -> View:
    """What has one element a row, seen for each element of it."""
    return View(one, tuple(shape), (*view(one).steps, 0))


@triton.jit
def _layer_norm(y, s_y, x, s_x, mean, s_mean, rstd, s_rstd, g, b, rows, lead, eps, t_y: tl.constexpr,
                t_x: tl.constexpr, t_g: tl.constexpr, t_b: tl.constexpr,
                NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    y += places(row, lead, s_y)
    x += places(row, lead, s_x)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        total += tl.sum(fetch(x, col, t_x, mask, 0.0), 1)
    middle = total / NUM
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        away = tl.where(mask, fetch(x, col, t_x, mask, 0.0) - middle[:, None], 0.0)
        total += tl.sum(away * away, 1)
    scale = 1.0 / tl.sqrt_rn(total / NUM + eps)
    tl.store(mean + places(row, lead, s_mean), middle.to(mean.dtype.element_ty), mask=here)
    tl.store(rstd + places(row, lead, s_rstd), scale.to(rstd.dtype.element_ty), mask=here)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        z = (fetch(x, col, t_x, mask, 0.0) - middle[:, None]) * scale[:, None]
        put(y, col, t_y, z * fetch_vector(g, col, t_g, NUM) + fetch_vector(b, col, t_b, NUM), mask)


@triton.jit
def _layer_norm_grad(out, s_out, dy, s_dy, x, s_x, mean, s_mean, rstd, s_rstd, g, rows, lead, t_out: tl.constexpr,
                     t_dy: tl.constexpr, t_x: tl.constexpr, t_g: tl.constexpr,
                     NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    _layer_slopes(out, s_out, dy, s_dy, x, s_x, x, s_x, mean, s_mean, rstd, s_rstd, g, rows, lead, t_out, t_dy, t_x,
                  t_x, t_g, False, NUM, ROWS, BLOCK)  # fmt: skip


@triton.jit
def _layer_norm_grad_onto(out, s_out, dy, s_dy, x, s_x, onto, s_onto, mean, s_mean, rstd, s_rstd, g, rows, lead,
                          t_out: tl.constexpr, t_dy: tl.constexpr, t_x: tl.constexpr, t_onto: tl.constexpr,
                          t_g: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
                          BLOCK: tl.constexpr):  # fmt: skip
    _layer_slopes(out, s_out, dy, s_dy, x, s_x, onto, s_onto, mean, s_mean, rstd, s_rstd, g, rows, lead, t_out, t_dy,
                  t_x, t_onto, t_g, True, NUM, ROWS, BLOCK)  # fmt: skip


@triton.jit
def _layer_slopes(out, s_out, dy, s_dy, x, s_x, onto, s_onto, mean, s_mean, rstd, s_rstd, g, rows, lead,
                  t_out: tl.constexpr, t_dy: tl.constexpr, t_x: tl.constexpr, t_onto: tl.constexpr, t_g: tl.constexpr,
                  ADDS: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += places(row, lead, s_out)
    dy += places(row, lead, s_dy)
    x += places(row, lead, s_x)
    onto += places(row, lead, s_onto)
    middle = tl.load(mean + places(row, lead, s_mean), mask=here, other=0.0).to(tl.float32)[:, None]
    scale = tl.load(rstd + places(row, lead, s_rstd), mask=here, other=0.0).to(tl.float32)[:, None]
    first = tl.zeros((ROWS,), tl.float32)
    second = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        slope = fetch(dy, col, t_dy, mask, 0.0) * fetch_vector(g, col, t_g, NUM)
        z = (fetch(x, col, t_x, mask, 0.0) - middle) * scale
        first += tl.sum(slope, 1)
        second += tl.sum(slope * z, 1)
    first /= NUM
    second /= NUM
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        slope = fetch(dy, col, t_dy, mask, 0.0) * fetch_vector(g, col, t_g, NUM)
        z = (fetch(x, col, t_x, mask, 0.0) - middle) * scale
        made = (slope - first[:, None] - z * second[:, None]) * scale
        if ADDS:
            made += fetch(onto, col, t_onto, mask, 0.0)
        put(out, col, t_out, made, mask)


@triton.jit
def _rms_norm(y, s_y, x, s_x, rstd, s_rstd, g, rows, lead, eps, t_y: tl.constexpr, t_x: tl.constexpr,
              t_g: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    y += places(row, lead, s_y)
    x += places(row, lead, s_x)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        v = fetch(x, col, t_x, mask, 0.0)
        total += tl.sum(v * v, 1)
    scale = 1.0 / tl.sqrt_rn(total / NUM + eps)
    tl.store(rstd + places(row, lead, s_rstd), scale.to(rstd.dtype.element_ty), mask=here)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        v = fetch(x, col, t_x, mask, 0.0) * scale[:, None]
        put(y, col, t_y, v * fetch_vector(g, col, t_g, NUM), mask)


@triton.jit
def _rms_norm_grad(out, s_out, dy, s_dy, x, s_x, rstd, s_rstd, g, rows, lead, t_out: tl.constexpr,
                   t_dy: tl.constexpr, t_x: tl.constexpr, t_g: tl.constexpr,
                   NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    _rms_slopes(out, s_out, dy, s_dy, x, s_x, x, s_x, rstd, s_rstd, g, rows, lead, t_out, t_dy, t_x, t_x, t_g, False,
                NUM, ROWS, BLOCK)  # fmt: skip


@triton.jit
def _rms_norm_grad_onto(out, s_out, dy, s_dy, x, s_x, onto, s_onto, rstd, s_rstd, g, rows, lead, t_out: tl.constexpr,
                        t_dy: tl.constexpr, t_x: tl.constexpr, t_onto: tl.constexpr, t_g: tl.constexpr,
                        NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    _rms_slopes(out, s_out, dy, s_dy, x, s_x, onto, s_onto, rstd, s_rstd, g, rows, lead, t_out, t_dy, t_x, t_onto, t_g,
                True, NUM, ROWS, BLOCK)  # fmt: skip


@triton.jit
def _rms_slopes(out, s_out, dy, s_dy, x, s_x, onto, s_onto, rstd, s_rstd, g, rows, lead, t_out: tl.constexpr,
                t_dy: tl.constexpr, t_x: tl.constexpr, t_onto: tl.constexpr, t_g: tl.constexpr, ADDS: tl.constexpr,
                NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += places(row, lead, s_out)
    dy += places(row, lead, s_dy)
    x += places(row, lead, s_x)
    onto += places(row, lead, s_onto)
    scale = tl.load(rstd + places(row, lead, s_rstd), mask=here, other=0.0).to(tl.float32)[:, None]
    along = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        slope = fetch(dy, col, t_dy, mask, 0.0) * fetch_vector(g, col, t_g, NUM)
        along += tl.sum(slope * fetch(x, col, t_x, mask, 0.0), 1)
    inner = (along / NUM)[:, None] * scale * scale
    for start in range(0, NUM, BLOCK):
        col, mask = block(here, start, NUM, BLOCK)
        slope = fetch(dy, col, t_dy, mask, 0.0) * fetch_vector(g, col, t_g, NUM)
        made = (slope - fetch(x, col, t_x, mask, 0.0) * inner) * scale
        if ADDS:
            made += fetch(onto, col, t_onto, mask, 0.0)
        put(out, col, t_out, made, mask)

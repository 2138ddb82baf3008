"""Layer norm and RMS norm over the last dim, and their gradients.

It knows no other statistics.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.codegen import reduction_plan
from castile.kernels.triton.functions import block_of_rows, load_rows, load_vector, offsets, store_rows
from castile.kernels.triton.launch import LaunchPlan, are_floats, planned
from castile.kernels.triton.rows import by_rows
from castile.kernels.triton.snippet import snippet
from castile.kernels.triton.views import Shape, View, view

_LAYER_SUMS = snippet("dy, x, mean, rstd -> dy * (x - mean) * rstd; dy")
_RMS_SUMS = snippet("dy, x, rstd -> dy * x * rstd")


@planned
def layer_norm(out: tuple[Any, Any, Any], x: Any, g: Any, b: Any, *, eps: float) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(*out, x, g, b):
        return None
    y, mean, rstd = map(view, out)
    return by_rows(_layer_norm, [y, view(x)], [mean, rstd], [view(g), view(b)], numbers=(eps,), flops=8)


@planned
def layer_norm_grad_input(
    out: Any, dy: Any, x: Any, g: Any, mean: Any, rstd: Any, onto: Any = None
) -> LaunchPlan | None:
    """See the definition."""
    kernel, more = (_layer_norm_grad, ()) if onto is None else (_layer_norm_grad_onto, (onto,))
    if not are_floats(out, dy, x, g, mean, rstd, *more):
        return None
    return by_rows(kernel, [*map(view, (out, dy, x, *more))], [view(mean), view(rstd)], [view(g)], flops=11)


@planned
def layer_norm_grad_params(
    out: tuple[Any, Any], dy: Any, x: Any, mean: Any, rstd: Any, *, accumulate: bool
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(*out, dy, x, mean, rstd):
        return None
    xs = [view(dy), view(x), _along(mean, x.shape), _along(rstd, x.shape)]
    return reduction_plan(_LAYER_SUMS, [*map(view, out)], xs, tuple(range(x.ndim - 1)), {}, adds=accumulate)


@planned
def rms_norm(out: tuple[Any, Any], x: Any, g: Any, *, eps: float) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(*out, x, g):
        return None
    return by_rows(_rms_norm, [view(out[0]), view(x)], [view(out[1])], [view(g)], numbers=(eps,), flops=4)


@planned
def rms_norm_grad_input(out: Any, dy: Any, x: Any, g: Any, rstd: Any, onto: Any = None) -> LaunchPlan | None:
    """See the definition."""
    kernel, more = (_rms_norm_grad, ()) if onto is None else (_rms_norm_grad_onto, (onto,))
    if not are_floats(out, dy, x, g, rstd, *more):
        return None
    return by_rows(kernel, [*map(view, (out, dy, x, *more))], [view(rstd)], [view(g)], flops=8)


@planned
def rms_norm_grad_params(out: Any, dy: Any, x: Any, rstd: Any, *, accumulate: bool) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, dy, x, rstd):
        return None
    xs = [view(dy), view(x), _along(rstd, x.shape)]
    return reduction_plan(_RMS_SUMS, [view(out)], xs, tuple(range(x.ndim - 1)), {}, adds=accumulate)


def _along(one: Any, shape: Shape) -> View:
    """What has one element a row, seen for each element of it."""
    return View(one, tuple(shape), (*view(one).steps, 0))


@triton.jit
def _layer_norm(y, s_y, x, s_x, mean, s_mean, rstd, s_rstd, g, b, rows, lead, eps, t_y: tl.constexpr,
                t_x: tl.constexpr, t_g: tl.constexpr, t_b: tl.constexpr,
                NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    y += offsets(row, lead, s_y)
    x += offsets(row, lead, s_x)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        total += tl.sum(load_rows(x, col, t_x, mask, 0.0), 1)
    middle = total / NUM
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        away = tl.where(mask, load_rows(x, col, t_x, mask, 0.0) - middle[:, None], 0.0)
        total += tl.sum(away * away, 1)
    scale = 1.0 / tl.sqrt_rn(total / NUM + eps)
    tl.store(mean + offsets(row, lead, s_mean), middle.to(mean.dtype.element_ty), mask=here)
    tl.store(rstd + offsets(row, lead, s_rstd), scale.to(rstd.dtype.element_ty), mask=here)
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        z = (load_rows(x, col, t_x, mask, 0.0) - middle[:, None]) * scale[:, None]
        store_rows(y, col, t_y, z * load_vector(g, col, t_g, NUM) + load_vector(b, col, t_b, NUM), mask)


@triton.jit
def _layer_norm_grad(out, s_out, dy, s_dy, x, s_x, mean, s_mean, rstd, s_rstd, g, rows, lead, t_out: tl.constexpr,
                     t_dy: tl.constexpr, t_x: tl.constexpr, t_g: tl.constexpr,
                     NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    _layer_norm_backward(out, s_out, dy, s_dy, x, s_x, x, s_x, mean, s_mean, rstd, s_rstd, g, rows, lead, t_out, t_dy,
                         t_x, t_x, t_g, False, NUM, ROWS, BLOCK)  # fmt: skip


@triton.jit
def _layer_norm_grad_onto(out, s_out, dy, s_dy, x, s_x, onto, s_onto, mean, s_mean, rstd, s_rstd, g, rows, lead,
                          t_out: tl.constexpr, t_dy: tl.constexpr, t_x: tl.constexpr, t_onto: tl.constexpr,
                          t_g: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
                          BLOCK: tl.constexpr):  # fmt: skip
    _layer_norm_backward(out, s_out, dy, s_dy, x, s_x, onto, s_onto, mean, s_mean, rstd, s_rstd, g, rows, lead, t_out,
                         t_dy, t_x, t_onto, t_g, True, NUM, ROWS, BLOCK)  # fmt: skip


@triton.jit
def _layer_norm_backward(out, s_out, dy, s_dy, x, s_x, onto, s_onto, mean, s_mean, rstd, s_rstd, g, rows, lead,
                         t_out: tl.constexpr, t_dy: tl.constexpr, t_x: tl.constexpr, t_onto: tl.constexpr,
                         t_g: tl.constexpr, ADDS: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr,
                         BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += offsets(row, lead, s_out)
    dy += offsets(row, lead, s_dy)
    x += offsets(row, lead, s_x)
    onto += offsets(row, lead, s_onto)
    middle = tl.load(mean + offsets(row, lead, s_mean), mask=here, other=0.0).to(tl.float32)[:, None]
    scale = tl.load(rstd + offsets(row, lead, s_rstd), mask=here, other=0.0).to(tl.float32)[:, None]
    first = tl.zeros((ROWS,), tl.float32)
    second = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        grad = load_rows(dy, col, t_dy, mask, 0.0) * load_vector(g, col, t_g, NUM)
        z = (load_rows(x, col, t_x, mask, 0.0) - middle) * scale
        first += tl.sum(grad, 1)
        second += tl.sum(grad * z, 1)
    first /= NUM
    second /= NUM
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        grad = load_rows(dy, col, t_dy, mask, 0.0) * load_vector(g, col, t_g, NUM)
        z = (load_rows(x, col, t_x, mask, 0.0) - middle) * scale
        made = (grad - first[:, None] - z * second[:, None]) * scale
        if ADDS:
            made += load_rows(onto, col, t_onto, mask, 0.0)
        store_rows(out, col, t_out, made, mask)


@triton.jit
def _rms_norm(y, s_y, x, s_x, rstd, s_rstd, g, rows, lead, eps, t_y: tl.constexpr, t_x: tl.constexpr,
              t_g: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    y += offsets(row, lead, s_y)
    x += offsets(row, lead, s_x)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        v = load_rows(x, col, t_x, mask, 0.0)
        total += tl.sum(v * v, 1)
    scale = 1.0 / tl.sqrt_rn(total / NUM + eps)
    tl.store(rstd + offsets(row, lead, s_rstd), scale.to(rstd.dtype.element_ty), mask=here)
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        v = load_rows(x, col, t_x, mask, 0.0) * scale[:, None]
        store_rows(y, col, t_y, v * load_vector(g, col, t_g, NUM), mask)


@triton.jit
def _rms_norm_grad(out, s_out, dy, s_dy, x, s_x, rstd, s_rstd, g, rows, lead, t_out: tl.constexpr,
                   t_dy: tl.constexpr, t_x: tl.constexpr, t_g: tl.constexpr,
                   NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    _rms_norm_backward(out, s_out, dy, s_dy, x, s_x, x, s_x, rstd, s_rstd, g, rows, lead, t_out, t_dy, t_x, t_x, t_g,
                       False, NUM, ROWS, BLOCK)  # fmt: skip


@triton.jit
def _rms_norm_grad_onto(out, s_out, dy, s_dy, x, s_x, onto, s_onto, rstd, s_rstd, g, rows, lead, t_out: tl.constexpr,
                        t_dy: tl.constexpr, t_x: tl.constexpr, t_onto: tl.constexpr, t_g: tl.constexpr,
                        NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    _rms_norm_backward(out, s_out, dy, s_dy, x, s_x, onto, s_onto, rstd, s_rstd, g, rows, lead, t_out, t_dy, t_x,
                       t_onto, t_g, True, NUM, ROWS, BLOCK)  # fmt: skip


@triton.jit
def _rms_norm_backward(out, s_out, dy, s_dy, x, s_x, onto, s_onto, rstd, s_rstd, g, rows, lead, t_out: tl.constexpr,
                       t_dy: tl.constexpr, t_x: tl.constexpr, t_onto: tl.constexpr, t_g: tl.constexpr,
                       ADDS: tl.constexpr, NUM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    out += offsets(row, lead, s_out)
    dy += offsets(row, lead, s_dy)
    x += offsets(row, lead, s_x)
    onto += offsets(row, lead, s_onto)
    scale = tl.load(rstd + offsets(row, lead, s_rstd), mask=here, other=0.0).to(tl.float32)[:, None]
    along = tl.zeros((ROWS,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        grad = load_rows(dy, col, t_dy, mask, 0.0) * load_vector(g, col, t_g, NUM)
        along += tl.sum(grad * load_rows(x, col, t_x, mask, 0.0), 1)
    inner = (along / NUM)[:, None] * scale * scale
    for start in range(0, NUM, BLOCK):
        col, mask = block_of_rows(here, start, NUM, BLOCK)
        grad = load_rows(dy, col, t_dy, mask, 0.0) * load_vector(g, col, t_g, NUM)
        made = (grad - load_rows(x, col, t_x, mask, 0.0) * inner) * scale
        if ADDS:
            made += load_rows(onto, col, t_onto, mask, 0.0)
        store_rows(out, col, t_out, made, mask)

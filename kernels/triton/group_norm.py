"""Group normalisation of [b,c,...] over the neighbouring channels of a group, and its gradients.

It knows no other statistics.
"""

# mypy: disable-error-code="no-untyped-def"

from math import prod
from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.functions import places
from castile.kernels.triton.launch import Launch, Plan, Room, planned, takes
from castile.kernels.triton.lines import folded, packed, text
from castile.kernels.triton.views import Shape, View, nest, permuted, power_of_two, split, view, wide

_SUMS = text("dy, x, mean, rstd -> dy * (x - mean) * rstd; dy")
_BOTH = text("x, y -> x; y")


@planned
def group_norm(out: tuple[Any, Any, Any], x: Any, g: Any, b: Any, *, groups: int, eps: float) -> Plan | None:
    """See the definition."""
    y, mean, rstd = out
    if not takes(*out, x, g, b):
        return None
    return _by_groups(_group_norm, [y, x], mean, rstd, (g, b), (eps,), 8)


@planned
def group_norm_grad_input(out: Any, dy: Any, x: Any, g: Any, mean: Any, rstd: Any) -> Plan | None:
    """See the definition."""
    if not takes(out, dy, x, g, mean, rstd):
        return None
    return _by_groups(_group_norm_grad, [out, dy, x], mean, rstd, (g,), (), 11)


@planned
def group_norm_grad_params(
    out: tuple[Any, Any], dy: Any, x: Any, mean: Any, rstd: Any, *, accumulate: bool
) -> Plan | None:
    """See the definition."""
    if not takes(*out, dy, x, mean, rstd):
        return None
    shape = _apart(x.shape, mean.shape[1])
    still = (0,) * (len(shape) - 2)
    xs = [split(view(one), shape) for one in (dy, x)]
    xs += [View(one, shape, (*view(one).steps, *still)) for one in (mean, rstd)]
    outs = [split(view(one), shape[1:3]) for one in out]
    if len(shape) == 3:
        return folded(_SUMS, outs, xs, (0,), {}, adds=accumulate)
    # Of one channel of a sample, whose mean is one number, first.
    lead = shape[:3]
    rooms = [View(Room(max(1, prod(lead))), lead, packed(lead)) for _ in out]
    first = folded(_SUMS, rooms, xs, tuple(range(3, len(shape))), {})
    second = folded(_BOTH, outs, rooms, (0,), {}, adds=accumulate)
    return Plan(first.settings, lambda setting: [*first.launches(setting), *second.launches(second.settings[0])])


def _apart(shape: Shape, groups: int) -> Shape:
    """[b,groups,channels,...]."""
    return (shape[0], groups, shape[1] // groups, *shape[2:])


def _by_groups(
    kernel: Any,
    arrays: list[Any],
    mean: Any,
    rstd: Any,
    vectors: tuple[Any, ...],
    numbers: tuple[float, ...],
    flops: int,
) -> Plan | None:
    """The work of `kernel`, one group of one sample a program; None where a group is longer than 32 bits can count."""
    batch, groups = mean.shape
    shape = _apart(arrays[0].shape, groups)
    views = [split(view(one), shape) for one in arrays]
    within = [permuted(one, tuple(range(2, len(shape)))) for one in views]
    walk = nest(within)
    plane, per = walk.extent // max(1, shape[2]), shape[2]
    if batch * groups * walk.extent == 0:
        return Plan((None,), lambda _: [])
    if wide(within):
        return None
    operands = [part for one, along in zip(views, walk.steps, strict=True) for part in (one, one.steps[:2], along)]
    operands += [part for one in (mean, rstd) for part in (one, view(one).steps)]
    operands += [part for one in vectors for part in (one, *view(one).steps)]
    args = (*operands, groups, per, walk.sizes, *numbers)
    total = flops * batch * groups * walk.extent

    def launches(setting: tuple[int, int]) -> list[Launch]:
        longest, each = setting
        across = min(longest, power_of_two(walk.extent))
        constants = {"NUM": walk.extent, "PLANE": plane, "BLOCK": across}
        return [Launch(kernel, (batch * groups,), args, constants, max(1, across // (32 * each)), flops=total)]

    # There are few groups: a program gets many warps, and 8 elements a thread leave registers for two of them.
    # A group that is held at once has as many elements a thread as leave several programs on a processor.
    held, walked = (8192, 16), (4096, 8)
    first = (held, walked) if walk.extent <= held[0] else (walked, held)
    return Plan((*first, (4096, 32), (4096, 16), (2048, 16), (8192, 32)), launches)


@triton.jit
def _of_channel(x, step, first, start, NUM: tl.constexpr, PLANE: tl.constexpr, BLOCK: tl.constexpr):
    """The elements of a vector of channels for a block of a group; one, where the block lies within a channel."""
    if PLANE % BLOCK == 0:
        return tl.load(x + (first + start // PLANE) * step).to(tl.float32)
    else:
        col = start + tl.arange(0, BLOCK)
        return tl.load(x + (first + col // PLANE) * step, mask=col < NUM, other=0.0).to(tl.float32)


@triton.jit
def _group_norm(y, s_y, t_y, x, s_x, t_x, mean, s_mean, rstd, s_rstd, g, s_g, b, s_b, groups, per, inner, eps,
                NUM: tl.constexpr, PLANE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    sample, group = (tl.program_id(0) // groups).to(tl.int64), (tl.program_id(0) % groups).to(tl.int64)
    y += sample * s_y[0] + group * s_y[1]
    x += sample * s_x[0] + group * s_x[1]
    # Less the mean of the first block, squares lose little by being summed together with what they are squares of.
    col = tl.arange(0, BLOCK)
    v = tl.load(x + places(col, inner, t_x), mask=col < NUM, other=0.0).to(tl.float32)
    near = tl.sum(v, 0) / min(NUM, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col = start + tl.arange(0, BLOCK)
        v = tl.load(x + places(col, inner, t_x), mask=col < NUM, other=0.0).to(tl.float32)
        away = tl.where(col < NUM, v - near, 0.0)
        total += away
        squares += away * away
    rest = tl.sum(total, 0) / NUM
    middle = near + rest
    scale = 1.0 / tl.sqrt_rn(tl.maximum(tl.sum(squares, 0) / NUM - rest * rest, 0.0) + eps)
    tl.store(mean + sample * s_mean[0] + group * s_mean[1], middle.to(mean.dtype.element_ty))
    tl.store(rstd + sample * s_rstd[0] + group * s_rstd[1], scale.to(rstd.dtype.element_ty))
    for start in range(0, NUM, BLOCK):
        col = start + tl.arange(0, BLOCK)
        v = tl.load(x + places(col, inner, t_x), mask=col < NUM, other=0.0).to(tl.float32)
        gain = _of_channel(g, s_g, group * per, start, NUM, PLANE, BLOCK)
        shift = _of_channel(b, s_b, group * per, start, NUM, PLANE, BLOCK)
        value = (v - middle) * scale * gain + shift
        tl.store(y + places(col, inner, t_y), value.to(y.dtype.element_ty), mask=col < NUM)


@triton.jit
def _group_norm_grad(out, s_out, t_out, dy, s_dy, t_dy, x, s_x, t_x, mean, s_mean, rstd, s_rstd, g, s_g, groups, per,
                     inner, NUM: tl.constexpr, PLANE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    sample, group = (tl.program_id(0) // groups).to(tl.int64), (tl.program_id(0) % groups).to(tl.int64)
    out += sample * s_out[0] + group * s_out[1]
    dy += sample * s_dy[0] + group * s_dy[1]
    x += sample * s_x[0] + group * s_x[1]
    middle = tl.load(mean + sample * s_mean[0] + group * s_mean[1]).to(tl.float32)
    scale = tl.load(rstd + sample * s_rstd[0] + group * s_rstd[1]).to(tl.float32)
    first = tl.zeros((BLOCK,), tl.float32)
    second = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col = start + tl.arange(0, BLOCK)
        gain = _of_channel(g, s_g, group * per, start, NUM, PLANE, BLOCK)
        slope = tl.load(dy + places(col, inner, t_dy), mask=col < NUM, other=0.0).to(tl.float32) * gain
        v = tl.load(x + places(col, inner, t_x), mask=col < NUM, other=0.0).to(tl.float32)
        first += slope
        second += slope * ((v - middle) * scale)
    mean_slope, mean_along = tl.sum(first, 0) / NUM, tl.sum(second, 0) / NUM
    for start in range(0, NUM, BLOCK):
        col = start + tl.arange(0, BLOCK)
        gain = _of_channel(g, s_g, group * per, start, NUM, PLANE, BLOCK)
        slope = tl.load(dy + places(col, inner, t_dy), mask=col < NUM, other=0.0).to(tl.float32) * gain
        z = (tl.load(x + places(col, inner, t_x), mask=col < NUM, other=0.0).to(tl.float32) - middle) * scale
        value = (slope - mean_slope - z * mean_along) * scale
        tl.store(out + places(col, inner, t_out), value.to(out.dtype.element_ty), mask=col < NUM)

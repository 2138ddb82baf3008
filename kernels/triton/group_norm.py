"""Group normalisation of [b,c,...] over the neighbouring channels of a group, and its gradients.

Where channels lie side by side and a group shares with others what memory is fetched in, sums are those of channels,
and groups are made of these. It knows no other statistics.
"""

# mypy: disable-error-code="no-untyped-def"

from math import isqrt, prod
from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.codegen import contiguous_steps, elementwise_plan, reduction_plan
from castile.kernels.triton.functions import maximum, offsets
from castile.kernels.triton.launch import Launch, LaunchPlan, Workspace, are_floats, fixed_plan, in_sequence, planned
from castile.kernels.triton.snippet import snippet
from castile.kernels.triton.views import Shape, View, loop_nest, needs_64_bits, permuted, power_of_two, split_dims, view

# Bytes that memory is fetched in.
_SECTOR = 32

_SUMS = snippet("dy, x, mean, rstd -> dy * (x - mean) * rstd; dy")
_BOTH = snippet("x, y -> x; y")
_MEAN = snippet("x -> x * share", "share")
_AWAY = snippet("x, near -> x - near; (x - near) * (x - near)")
_NORM = snippet("x, mean, rstd, g, b -> (x - mean) * rstd * g + b")
_SLOPE = snippet("dy, x, mean, rstd, g, grad, along -> (dy * g - grad - (x - mean) * rstd * along) * rstd")


@planned
def group_norm(out: tuple[Any, Any, Any], x: Any, g: Any, b: Any, *, groups: int, eps: float) -> LaunchPlan | None:
    """See the definition."""
    y, mean, rstd = out
    if not are_floats(*out, x, g, b):
        return None
    if _channels_innermost(y, x) and _shares_sectors(x, groups):
        return _normed(out, x, g, b, groups, eps)
    return _by_groups(_group_norm, [y, x], mean, rstd, (g, b), (eps,), 8)


@planned
def group_norm_grad_input(out: Any, dy: Any, x: Any, g: Any, mean: Any, rstd: Any) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, dy, x, g, mean, rstd):
        return None
    if _channels_innermost(out, dy, x) and _shares_sectors(x, mean.shape[1]):
        return _backward(out, dy, x, g, mean, rstd)
    return _by_groups(_group_norm_grad, [out, dy, x], mean, rstd, (g,), (), 11)


@planned
def group_norm_grad_params(
    out: tuple[Any, Any], dy: Any, x: Any, mean: Any, rstd: Any, *, accumulate: bool
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(*out, dy, x, mean, rstd):
        return None
    if _channels_innermost(dy, x):
        first, sums, _ = _summed(dy, x, mean, rstd)
        second = reduction_plan(_BOTH, [*map(view, out)], sums, (0,), {}, adds=accumulate)
        return in_sequence(first, second)
    shape = _apart(x.shape, mean.shape[1])
    still = (0,) * (len(shape) - 2)
    xs = [split_dims(view(one), shape) for one in (dy, x)]
    xs += [View(one, shape, (*view(one).steps, *still)) for one in (mean, rstd)]
    outs = [split_dims(view(one), shape[1:3]) for one in out]
    if len(shape) == 3:
        return reduction_plan(_SUMS, outs, xs, (0,), {}, adds=accumulate)
    # Of one channel of a sample, whose mean is one number, first.
    lead = shape[:3]
    rooms = [View(Workspace(max(1, prod(lead))), lead, contiguous_steps(lead)) for _ in out]
    first = reduction_plan(_SUMS, rooms, xs, tuple(range(3, len(shape))), {})
    second = reduction_plan(_BOTH, outs, rooms, (0,), {}, adds=accumulate)
    return in_sequence(first, second)


def _channels_innermost(*arrays: Any) -> bool:
    """Whether the channels of several places of images lie side by side."""
    places = min(prod(one.shape[2:]) for one in arrays)
    return places > 1 and all(one.shape[1] > 1 and view(one).steps[1] == 1 for one in arrays)


def _shares_sectors(x: Any, groups: int) -> bool:
    """Whether what memory is fetched in holds channels of several groups."""
    return x.shape[1] // groups * x.dtype.itemsize % _SECTOR != 0


def _rooms(num: int, x: Any) -> list[View]:
    """Working memory for so many numbers of each channel of each sample."""
    lead = tuple(x.shape[:2])
    return [View(Workspace(prod(lead)), lead, contiguous_steps(lead)) for _ in range(num)]


def _broadcast(one: View, x: Any) -> View:
    """What channels have, or those of each sample, seen by every element of [b,c,...]."""
    lead = (0,) * (2 - len(one.steps))
    return View(one.array, tuple(x.shape), (*lead, *one.steps, *[0] * (x.ndim - 2)))


def _some_places(x: View) -> View:
    """Of [b,c,...] the root of all places or more, so that squares about their mean are no more than that many times
    those about the mean of all, wherever numbers lie that are unlike the others.
    """
    apart = [isqrt(n) for n in x.shape[2:]]
    shape = (*x.shape[:2], *(-(-n // step) for n, step in zip(x.shape[2:], apart, strict=True)))
    return View(x.array, shape, (*x.steps[:2], *(n * step for n, step in zip(x.steps[2:], apart, strict=True))))


def _normed(out: tuple[Any, Any, Any], x: Any, g: Any, b: Any, groups: int, eps: float) -> LaunchPlan:
    """Sums of channels less the mean of some places of each, groups' moments of those, and the result."""
    y, mean, rstd = out
    (near,), sums, statistics, count = _rooms(1, x), _rooms(2, x), _rooms(2, x), prod(x.shape[2:])
    dims, some = tuple(range(2, x.ndim)), _some_places(view(x))
    found = reduction_plan(_MEAN, [near], [some], dims, {"share": 1 / prod(some.shape[2:])})
    first = reduction_plan(_AWAY, sums, [view(x), _broadcast(near, x)], dims, {})
    per = x.shape[1] // groups
    args = (near, *sums, mean, view(mean).steps, rstd, view(rstd).steps, *statistics, groups, per, float(count))
    joined = Launch(_join, (len(x) * groups,), (*args, eps), {"BLOCK": power_of_two(per)}, 1)
    last = elementwise_plan(
        _NORM, [view(y)], [view(x), *(_broadcast(one, x) for one in (*statistics, view(g), view(b)))], {}
    )
    return in_sequence(found, first, fixed_plan(joined), last, chooses=1)


def _summed(dy: Any, x: Any, mean: Any, rstd: Any) -> tuple[LaunchPlan, list[View], list[View]]:
    """The work of `_SUMS` of channels of each sample, those sums, and what their mean and rstd are."""
    statistics, sums = _rooms(2, x), _rooms(2, x)
    shape = (*mean.shape, x.shape[1] // mean.shape[1])
    stretched = [View(one, shape, (*view(one).steps, 0)) for one in (mean, rstd)]
    given = elementwise_plan(_BOTH, [split_dims(one, shape) for one in statistics], stretched, {})
    xs = [view(dy), view(x), *(_broadcast(one, x) for one in statistics)]
    first = reduction_plan(_SUMS, sums, xs, tuple(range(2, x.ndim)), {})
    return in_sequence(given, first, chooses=1), sums, statistics


def _backward(out: Any, dy: Any, x: Any, g: Any, mean: Any, rstd: Any) -> LaunchPlan:
    """Sums of channels, what groups have of those, and the gradient."""
    first, sums, statistics = _summed(dy, x, mean, rstd)
    shares, (samples, groups) = _rooms(2, x), mean.shape
    per = x.shape[1] // groups
    args = (*sums, *shares, g, *view(g).steps, groups, per, 1.0 / (per * prod(x.shape[2:])))
    joined = Launch(_share, (samples * groups,), args, {"BLOCK": power_of_two(per)}, 1)
    xs = [view(dy), view(x), *(_broadcast(one, x) for one in (*statistics, view(g), *shares))]
    last = elementwise_plan(_SLOPE, [view(out)], xs, {})
    return in_sequence(first, fixed_plan(joined), last)


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
) -> LaunchPlan | None:
    """The work of `kernel`, one group of one sample a program; None where a group is longer than 32 bits can count."""
    batch, groups = mean.shape
    shape = _apart(arrays[0].shape, groups)
    views = [split_dims(view(one), shape) for one in arrays]
    innermost, per = _channels_innermost(*arrays), shape[2]
    dims = (*range(3, len(shape)), 2) if innermost else tuple(range(2, len(shape)))
    within = [permuted(one, dims) for one in views]
    walk = loop_nest(within)
    plane = 1 if innermost else walk.extent // max(1, per)
    if batch * groups * walk.extent == 0:
        return fixed_plan()
    if needs_64_bits(within):
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
    return LaunchPlan((*first, (4096, 32), (4096, 16), (2048, 16), (8192, 32)), launches)


@triton.jit
def _of_channel(x, step, first, per, start, NUM: tl.constexpr, PLANE: tl.constexpr, BLOCK: tl.constexpr):
    """The elements of a vector of channels for a block of a group; one, where the block lies within a channel.

    first, per: the group's first channel, and how many it has.
    """
    if PLANE % BLOCK == 0:
        return tl.load(x + (first + start // PLANE) * step).to(tl.float32)
    else:
        col = start + tl.arange(0, BLOCK)
        own = col // PLANE if PLANE > 1 else col % per
        return tl.load(x + (first + own) * step, mask=col < NUM, other=0.0).to(tl.float32)


@triton.jit
def _group_norm(y, s_y, t_y, x, s_x, t_x, mean, s_mean, rstd, s_rstd, g, s_g, b, s_b, groups, per, inner, eps,
                NUM: tl.constexpr, PLANE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    sample, group = (tl.program_id(0) // groups).to(tl.int64), (tl.program_id(0) % groups).to(tl.int64)
    y += sample * s_y[0] + group * s_y[1]
    x += sample * s_x[0] + group * s_x[1]
    # Less the mean of the first block, squares lose little by being summed together with what they are squares of.
    col = tl.arange(0, BLOCK)
    v = tl.load(x + offsets(col, inner, t_x), mask=col < NUM, other=0.0).to(tl.float32)
    near = tl.sum(v, 0) / min(NUM, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, NUM, BLOCK):
        col = start + tl.arange(0, BLOCK)
        v = tl.load(x + offsets(col, inner, t_x), mask=col < NUM, other=0.0).to(tl.float32)
        away = tl.where(col < NUM, v - near, 0.0)
        total += away
        squares += away * away
    rest = tl.sum(total, 0) / NUM
    middle = near + rest
    scale = 1.0 / tl.sqrt_rn(maximum(tl.sum(squares, 0) / NUM - rest * rest, 0.0) + eps)
    tl.store(mean + sample * s_mean[0] + group * s_mean[1], middle.to(mean.dtype.element_ty))
    tl.store(rstd + sample * s_rstd[0] + group * s_rstd[1], scale.to(rstd.dtype.element_ty))
    for start in range(0, NUM, BLOCK):
        col = start + tl.arange(0, BLOCK)
        v = tl.load(x + offsets(col, inner, t_x), mask=col < NUM, other=0.0).to(tl.float32)
        gain = _of_channel(g, s_g, group * per, per, start, NUM, PLANE, BLOCK)
        shift = _of_channel(b, s_b, group * per, per, start, NUM, PLANE, BLOCK)
        value = (v - middle) * scale * gain + shift
        tl.store(y + offsets(col, inner, t_y), value.to(y.dtype.element_ty), mask=col < NUM)


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
        gain = _of_channel(g, s_g, group * per, per, start, NUM, PLANE, BLOCK)
        grad = tl.load(dy + offsets(col, inner, t_dy), mask=col < NUM, other=0.0).to(tl.float32) * gain
        v = tl.load(x + offsets(col, inner, t_x), mask=col < NUM, other=0.0).to(tl.float32)
        first += grad
        second += grad * ((v - middle) * scale)
    mean_grad, mean_along = tl.sum(first, 0) / NUM, tl.sum(second, 0) / NUM
    for start in range(0, NUM, BLOCK):
        col = start + tl.arange(0, BLOCK)
        gain = _of_channel(g, s_g, group * per, per, start, NUM, PLANE, BLOCK)
        grad = tl.load(dy + offsets(col, inner, t_dy), mask=col < NUM, other=0.0).to(tl.float32) * gain
        z = (tl.load(x + offsets(col, inner, t_x), mask=col < NUM, other=0.0).to(tl.float32) - middle) * scale
        value = (grad - mean_grad - z * mean_along) * scale
        tl.store(out + offsets(col, inner, t_out), value.to(out.dtype.element_ty), mask=col < NUM)


@triton.jit
def _join(near, first, second, mean, s_mean, rstd, s_rstd, middles, rates, groups, per, count, eps,
          BLOCK: tl.constexpr):  # fmt: skip
    sample, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups
    c = tl.arange(0, BLOCK)
    here, at = c < per, tl.program_id(0) * per + c
    rest = tl.load(first + at, mask=here, other=0.0) / count
    own = tl.load(near + at, mask=here, other=0.0) + rest
    middle = tl.sum(own, 0) / per
    # Squares less those of a channel's own mean, and of what that is away from the group's (Chan et al. 1983).
    squares = tl.load(second + at, mask=here, other=0.0) / count - rest * rest
    away = tl.where(here, own - middle, 0.0)
    scale = 1.0 / tl.sqrt_rn(maximum(tl.sum(squares + away * away, 0) / per, 0.0) + eps)
    tl.store(mean + sample * s_mean[0] + group * s_mean[1], middle.to(mean.dtype.element_ty))
    tl.store(rstd + sample * s_rstd[0] + group * s_rstd[1], scale.to(rstd.dtype.element_ty))
    tl.store(middles + at, tl.zeros_like(own) + middle, mask=here)
    tl.store(rates + at, tl.zeros_like(own) + scale, mask=here)


@triton.jit
def _share(along, first, grads, alongs, g, s_g, groups, per, share, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    here, at = c < per, tl.program_id(0) * per + c
    gain = tl.load(g + (tl.program_id(0) % groups * per + c) * s_g, mask=here, other=0.0).to(tl.float32)
    grad = tl.sum(tl.load(first + at, mask=here, other=0.0) * gain, 0) * share
    turn = tl.sum(tl.load(along + at, mask=here, other=0.0) * gain, 0) * share
    tl.store(grads + at, tl.zeros_like(gain) + grad, mask=here)
    tl.store(alongs + at, tl.zeros_like(gain) + turn, mask=here)

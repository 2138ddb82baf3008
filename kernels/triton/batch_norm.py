"""Batch normalisation: moments, what x meets, and the gradients, one pass over x each.

It knows no layer. What decides over means and deviations is computed in float64, as moments are kept.
"""

# mypy: disable-error-code="no-untyped-def"

from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import triton
from triton import language as tl

from castile.kernels.triton.codegen import elementwise_plan
from castile.kernels.triton.functions import offsets
from castile.kernels.triton.launch import FLOATS, Launch, LaunchPlan, Workspace, are_floats, planned
from castile.kernels.triton.multi_tensor import multi_tensor
from castile.kernels.triton.snippet import Snippet, device_function, generated_kernel, snippet
from castile.kernels.triton.views import (
    INDEX_LIMIT,
    LoopNest,
    Shape,
    View,
    loop_nest,
    needs_64_bits,
    permuted,
    power_of_two,
    view,
)

# Sums are split into parts up to this many programs, as in `reduction_plan`.
_FILL = 1056
# Planes of fewer elements are walked together with the samples, as one of them fills no block.
_SMALL = 1024
# Channels that a program takes at most, and numbers that one joins at once, of fewer channels where parts are many.
_CHANNELS, _JOINED, _MANY = 64, 2048, 256

_NORM = snippet("x, mean, scale, shift -> (x - mean) * scale + shift")
# The gradients of x and, as two sums, of its factors, where that of the result is an expression's value.
_NORM_GRAD = """
def {name}({pointers}x, s_x, t_x, dx, s_dx, t_dx, {kept}factors, s_factors, room, batch, channels, cols, inner, span,
           runs, length, {constants}ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = (tl.program_id(1) // runs).to(tl.int64)
    first_col = tl.program_id(1) % runs * length
    last_col = tl.minimum(first_col + length, cols)
    known = row < channels
    mean = tl.load(factors + row * s_factors[1], mask=known, other=0.0).to(tl.float32)[:, None]
    scale = tl.load(factors + s_factors[0] + row * s_factors[1], mask=known, other=0.0).to(tl.float32)[:, None]
    first = tl.zeros((ROWS, BLOCK), tl.float32)
    second = tl.zeros((ROWS, BLOCK), tl.float32)
    for sample in range(part * span, tl.minimum(part * span + span, batch)):
        for start in tl.range(first_col, last_col, BLOCK, num_stages=STAGES):
            col = start + tl.arange(0, BLOCK)
            here = known[:, None] & (col < last_col)[None, :]
            place = x + sample * s_x[0] + ((row * s_x[1])[:, None] + offsets(col, inner, t_x)[None, :])
            value = tl.load(place, mask=here, other=0.0).to(tl.float32)
            {load}
            {grad}
            {keep}
            first += grad
            second += grad * (value - mean)
            place = dx + sample * s_dx[0] + ((row * s_dx[1])[:, None] + offsets(col, inner, t_dx)[None, :])
            tl.store(place, (grad * scale).to(dx.dtype.element_ty), mask=here)
    to = room + tl.program_id(1).to(tl.int64) * 2 * channels + row
    tl.store(to, tl.sum(first, 1), mask=known)
    tl.store(to + channels, tl.sum(second, 1), mask=known)
"""
# Numbers reach a kernel in float32: those that must be exact come as two.
_DEVIATION = (
    "mean = mean.to(tl.float64)",
    "second = second.to(tl.float64)",
    "gain = gain.to(tl.float32)",
)
_EPS = ("eps", "less")
# What is no number stays none.
_RATE = "rate = 1.0 / tl.sqrt(tl.where(variance < 0.0, 0.0, variance) + eps + less)"


@planned
def moments(out: Any, x: Any, *, scale: float, accumulate: bool) -> LaunchPlan | None:
    """See the definition."""
    planes = _planes([view(x)])
    if not _takes(out, x) or planes is None:
        return None
    return planes.sums(_moments, (), _join_moments, (view(out).steps, *_two(scale)), out, "float64", accumulate)


@planned
def moments_grad(out: Any, dm: Any, x: Any, *, scale: float, accumulate: bool) -> LaunchPlan | None:
    """See the definition. A large mean and its deviation cancel: these are added in float64."""
    if not _takes(out, dm, x):
        return None
    statements = ("value = first.to(tl.float64) + 2.0 * second.to(tl.float64) * x.to(tl.float64)",)
    values = ("(value * scale + value * less).to(tl.float32)",)
    what = Snippet(("x", "first", "second"), ("scale", "less"), statements, values, is_copy=True)
    xs = [view(x), *(_stretched(one, x.shape) for one in (dm[0], dm[1]))]
    return elementwise_plan(what, [view(out)], xs, dict(zip(what.constants, _two(scale), strict=True)), accumulate)


@planned
def norm(out: Any, x: Any, factors: Any) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, x, factors):
        return None
    return elementwise_plan(_NORM, [view(out)], [view(x), *(_stretched(factors[n], x.shape) for n in range(3))], {})


@planned
def norm_grad(out: tuple[Any, Any], dy: Any, x: Any, factors: Any) -> LaunchPlan | None:
    """See the definition."""
    return _grads(out, snippet("d -> d"), (dy,), x, factors, ())


@planned
def norm_grad_pointwise(
    out: tuple[Any, ...], expression: str, x: Any, factors: Any, *ys: Any, keeps: bool = False, **constants: float
) -> LaunchPlan | None:
    """See the definition."""
    return _grads(out, snippet(expression, *constants), ys, x, factors, tuple(map(float, constants.values())))


@planned
def norm_factors(out: Any, gain: Any, shift: Any, *statistics: Any, eps: float) -> LaunchPlan | None:
    """See the definition."""
    if not _takes(out, gain, shift, *statistics):
        return None
    statements = (*_DEVIATION, _variance(statistics), _RATE)
    values = ("mean.to(tl.float32)", "(gain * rate).to(tl.float32)", "shift")
    what = Snippet(("gain", "shift", "mean", "second"), _EPS, statements, values, is_copy=True)
    xs = [view(gain), view(shift), *map(view, _pair(statistics))]
    return elementwise_plan(what, [view(out[n]) for n in range(3)], xs, dict(zip(_EPS, _two(eps), strict=True)))


@planned
def norm_factors_grad(out: tuple[Any, ...], df: Any, gain: Any, *statistics: Any, eps: float) -> LaunchPlan | None:
    """See the definition."""
    if not _takes(*out, df, gain, *statistics):
        return None
    statements = (
        *_DEVIATION,
        "d_mean = d_mean.to(tl.float64)",
        "d_scale = d_scale.to(tl.float64)",
        _variance(statistics),
        _RATE,
        "spread = tl.where(variance < 0.0, 0.0, -0.5 * d_scale * gain * rate * rate * rate)",
    )
    d_mean = "d_mean" if len(statistics) == 2 else "d_mean - 2.0 * mean * spread"
    values = ("(d_scale * rate).to(tl.float32)", "d_shift", d_mean, "spread")
    what = Snippet(("gain", "mean", "second", "d_mean", "d_scale", "d_shift"), _EPS, statements, values, is_copy=True)
    xs = [gain, *_pair(statistics), *(df[n] for n in range(3))]
    outs = [*out[:2], *_pair(out[2:])]
    return elementwise_plan(what, [*map(view, outs)], [*map(view, xs)], dict(zip(_EPS, _two(eps), strict=True)))


@planned
def running_moment(
    out: Any, old: Any, m: Any, *more: Any, momentum: float, count: int, variance: bool
) -> LaunchPlan | None:
    """See the definition. Several that lie dense are renewed by one launch."""
    outs, every = out if more else (out,), (old, m, *more)
    if not _takes(*outs, *every):
        return None
    statements = ("mean = mean.to(tl.float64)", "second = second.to(tl.float64)")
    new = "(second - mean * mean) * unbiased" if variance else "mean"
    constants = {"kept": 1 - momentum, "momentum": momentum, "unbiased": count / (count - 1)}
    values = (f"(kept * old.to(tl.float32) + momentum * ({new})).to(tl.float32)",)
    what = Snippet(("old", "mean", "second"), tuple(constants), statements, values, is_copy=True)
    arrays = [part for was, given in zip(every[::2], every[1::2], strict=True) for part in (was, given[0], given[1])]
    return multi_tensor(what, outs, tuple(arrays), 0, constants)


def _grads(
    out: tuple[Any, ...], what: Snippet, ys: tuple[Any, ...], x: Any, factors: Any, numbers: tuple[float, ...]
) -> LaunchPlan | None:
    """The gradients of `norm` where its result's is the value of `what` for ys and numbers, and that if it is wanted.
    """
    to, grads, *kept = out
    planes = _planes([*map(view, ys), view(x), view(to), *map(view, kept)])
    if not are_floats(*out, *ys, x, factors) or planes is None:
        return None
    given = (factors, view(factors).steps)
    joining = (*given, view(grads).steps)
    return planes.sums(_norm_grad(what, bool(kept)), given, _join_grads, joining, grads, "float32", False, numbers)


def _takes(*arrays: Any) -> bool:
    """Whether all arrays hold floating numbers, moments' among them."""
    return all(x.dtype.name in (*FLOATS, "float64") for x in arrays)


def _two(x: float) -> tuple[float, float]:
    """A number as the sum of one of float32 and a small one."""
    near = float(np.float32(x))
    return near, x - near


def _pair(statistics: tuple[Any, ...]) -> tuple[Any, Any]:
    """Mean, and variance or mean of the square."""
    first, second = statistics if len(statistics) == 2 else (statistics[0][0], statistics[0][1])
    return first, second


def _variance(statistics: tuple[Any, ...]) -> str:
    return "variance = second" if len(statistics) == 2 else "variance = second - mean * mean"


def _stretched(one: Any, shape: Shape) -> View:
    """What has one element a channel, seen for each element of [b,c,...]."""
    return View(one, tuple(shape), tuple(view(one).steps[0] if dim == 1 else 0 for dim in range(len(shape))))


class _Planes(NamedTuple):
    """Arrays of one shape [b,c,...], of which `walk` has the places of one channel of one sample.

    Of small planes, and where channels lie side by side, there is one sample, and the walk has the places of all.
    plane: elements of a channel that lie together.
    """

    views: list[View]
    walk: LoopNest
    plane: int

    def sums(
        self, kernel: Any, given: tuple[Any, ...], join: Any, joining: tuple[Any, ...], out: Any, dtype: str,
        adds: bool, numbers: tuple[float, ...] = (),
    ) -> LaunchPlan:  # fmt: skip
        """The work of `kernel` on parts, each of which gives two sums a channel, and `join` on those.

        A program takes some channels, which lie side by side, of some places of some samples.
        """
        batch, channels = self.views[0].shape[:2]
        cols = self.walk.extent
        operands = [part for one, along in zip(self.views, self.walk.steps, strict=True)
                    for part in (one, one.steps[:2], along)]  # fmt: skip
        last = {"ADDS": adds} if "ADDS" in join.arg_names else {}

        def launches(setting: tuple[int, int, int]) -> list[Launch]:
            tile, warps, stages = setting
            # Of several channels where blocks of one would end far beyond its plane.
            widths = [tile >> n for n in range(3)] if self.plane >= _SMALL else [power_of_two(self.plane)]
            width = min(widths, key=lambda width: -(-self.plane // width) * width)
            down = min(_CHANNELS, tile // min(tile, width), power_of_two(channels))
            across = min(tile // down, power_of_two(cols))
            programs, blocks = -(-channels // down), -(-cols // across)
            span = -(-batch // max(1, min(batch, _FILL // programs)))
            runs = max(1, min(blocks // 4, _FILL // (programs * -(-batch // span))))
            length = -(-blocks // runs) * across
            runs = -(-cols // length)
            parts = -(-batch // span) * runs
            room = Workspace(parts * 2 * channels, dtype)
            how = {"ROWS": down, "BLOCK": across, "STAGES": stages}
            args = (*operands, *given, room, batch, channels, cols, self.walk.sizes, span, runs, length, *numbers)
            flops = 4 * batch * channels * cols
            wide = min(32 if parts <= _MANY else 8, power_of_two(channels))
            ends = {"ROWS": wide, "PARTS": min(_JOINED // wide, power_of_two(parts))}
            nbytes = sum(one.array.size * one.array.dtype.itemsize for one in self.views)
            return [
                Launch(kernel, (programs, parts), args, how, warps, flops=flops, nbytes=nbytes),
                Launch(join, (-(-channels // wide),), (room, out, *joining, channels, parts), ends | last, 4),
            ]

        # Sums in float64 take registers, and long; with several arrays more warps have more on their way.
        several = len(self.views) > 1 and self.plane >= _SMALL
        first = (2048, 8, 1) if several else (1024, 4, 3)
        others = ((1024, 4, 1), (2048, 8, 1), (1024, 4, 3), (2048, 4, 1), (2048, 4, 3), (4096, 8, 3))
        return LaunchPlan(tuple(dict.fromkeys((first, *others))), launches)


def _planes(views: list[View]) -> _Planes | None:
    """None where a sample is longer than 32 bits can count, or there is nothing."""
    dims = tuple(range(1, len(views[0].shape)))
    if not prod(views[0].shape):
        return None
    plane = 1 if all(one.steps[1] == 1 for one in views) else prod(views[0].shape[2:])
    if plane < _SMALL and prod(views[0].shape) < INDEX_LIMIT // 2 and not needs_64_bits(views):
        walk = loop_nest([permuted(one, (0, *dims[1:])) for one in views])
        return _Planes([View(one.array, (1, one.shape[1]), (0, one.steps[1])) for one in views], walk, plane)
    if needs_64_bits([permuted(one, dims) for one in views]):
        return None
    return _Planes(views, loop_nest([permuted(one, dims[1:]) for one in views]), plane)


@cache
def _norm_grad(what: Snippet, keeps: bool) -> Any:
    """The kernel of `_NORM_GRAD` for an expression of arrays of x's shape, whose value is written too if it is kept."""
    call, ys = device_function(what), [f"y{n}" for n in range(len(what.names))]
    numbers = [f"z{n}" for n in range(len(what.constants))]
    load = []
    for y in ys:
        load.append(f"at = p_{y} + sample * s_{y}[0]")
        load.append(f"at += (row * s_{y}[1])[:, None] + offsets(col, inner, t_{y})[None, :]")
        load.append(f"{y} = tl.load(at, mask=here, other=0.0).to(tl.float32)")
    grad = f"grad = tl.where(here, {call.__name__}({', '.join((*ys, *numbers))}), 0.0)"
    words = {
        "pointers": "".join(f"p_{y}, s_{y}, t_{y}, " for y in ys),
        "kept": "kept, s_kept, t_kept, " * keeps,
        "constants": "".join(f"{z}, " for z in numbers),
    }
    keep = [
        "place = kept + sample * s_kept[0] + ((row * s_kept[1])[:, None] + offsets(col, inner, t_kept)[None, :])",
        "tl.store(place, grad.to(kept.dtype.element_ty), mask=here)",
    ] * keeps
    return generated_kernel(_NORM_GRAD, {"load": load, "grad": [grad], "keep": keep}, words, {call.__name__: call})


@triton.jit
def _moments(x, s_x, t_x, room, batch, channels, cols, inner, span, runs, length, ROWS: tl.constexpr,
             BLOCK: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = (tl.program_id(1) // runs).to(tl.int64)
    first_col = tl.program_id(1) % runs * length
    last_col = tl.minimum(first_col + length, cols)
    first = tl.zeros((ROWS, BLOCK), tl.float64)
    second = tl.zeros((ROWS, BLOCK), tl.float64)
    for sample in range(part * span, tl.minimum(part * span + span, batch)):
        for start in tl.range(first_col, last_col, BLOCK, num_stages=STAGES):
            col = start + tl.arange(0, BLOCK)
            here = (row < channels)[:, None] & (col < last_col)[None, :]
            place = x + sample * s_x[0] + ((row * s_x[1])[:, None] + offsets(col, inner, t_x)[None, :])
            v = tl.load(place, mask=here, other=0.0).to(tl.float64)
            first += v
            second += v * v
    to = room + tl.program_id(1).to(tl.int64) * 2 * channels + row
    tl.store(to, tl.sum(first, 1), mask=row < channels)
    tl.store(to + channels, tl.sum(second, 1), mask=row < channels)


@triton.jit
def _joined(room, row, channels, parts, ROWS: tl.constexpr, PARTS: tl.constexpr):
    """The sums of the parts of both sums of some channels."""
    first = tl.zeros((PARTS, ROWS), room.dtype.element_ty)
    second = tl.zeros((PARTS, ROWS), room.dtype.element_ty)
    for start in range(0, parts, PARTS):
        part = (start + tl.arange(0, PARTS))[:, None]
        here = (part < parts) & (row < channels)[None, :]
        first += tl.load(room + part * 2 * channels + row[None, :], mask=here, other=0.0)
        second += tl.load(room + part * 2 * channels + channels + row[None, :], mask=here, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def _join_moments(room, out, s_out, scale, less, channels, parts, ADDS: tl.constexpr,
                  ROWS: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < channels
    first, second = _joined(room, row, channels, parts, ROWS, PARTS)
    first = first * scale + first * less
    second = second * scale + second * less
    to = out + row * s_out[1]
    if ADDS:
        first += tl.load(to, mask=here).to(tl.float64)
        second += tl.load(to + s_out[0], mask=here).to(tl.float64)
    tl.store(to, first.to(out.dtype.element_ty), mask=here)
    tl.store(to + s_out[0], second.to(out.dtype.element_ty), mask=here)


@triton.jit
def _join_grads(room, out, factors, s_factors, s_out, channels, parts, ROWS: tl.constexpr, PARTS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < channels
    total, along = _joined(room, row, channels, parts, ROWS, PARTS)
    scale = tl.load(factors + s_factors[0] + row * s_factors[1], mask=here, other=0.0).to(tl.float32)
    to = out + row * s_out[1]
    tl.store(to, (-scale * total).to(out.dtype.element_ty), mask=here)
    tl.store(to + s_out[0], along.to(out.dtype.element_ty), mask=here)
    tl.store(to + 2 * s_out[0], total.to(out.dtype.element_ty), mask=here)

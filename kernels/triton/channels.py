"""Layouts of images: channels-last copies, channels in groups, and workspace whose dims lie in another order.

Windows over a channels-last copy see whole vectors of channels, which lie inside or outside together. Where columns are
contiguous instead, windows begin at any column, and each number is loaded alone. It knows no convolution.
"""

# mypy: disable-error-code="no-untyped-def"

from math import prod
from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.codegen import contiguous_steps
from castile.kernels.triton.functions import offsets
from castile.kernels.triton.launch import Launch, Workspace
from castile.kernels.triton.views import Shape, View, loop_nest, needs_64_bits, power_of_two, view

_TILE = 64


def grouped(one: View, dim: int, groups: int) -> View:
    """The view with dim `dim` divided into groups and the channels of each."""
    size, step = one.shape[dim] // groups, one.steps[dim]
    shape = (*one.shape[:dim], groups, size, *one.shape[dim + 1 :])
    return View(one.array, shape, (*one.steps[:dim], step * size, step, *one.steps[dim + 1 :]))


def workspace(shape: Shape, dims: Shape, dtype: str = "float32") -> View:
    """Workspace of that shape whose dims lie in the order `dims`, the last contiguous."""
    sizes = tuple(shape[dim] for dim in dims)
    steps = dict(zip(dims, contiguous_steps(sizes), strict=True))
    return View(Workspace(prod(shape), dtype), shape, tuple(steps[dim] for dim in range(len(shape))))


def channels_last(one: View) -> tuple[View, Launch]:
    """[...,c,h,w] as a channels-last copy in workspace, and the launch that makes it."""
    *lead, num, high, across = one.shape
    last = len(lead)
    copy = workspace(one.shape, (*range(last), last + 1, last + 2, last), one.array.dtype.name)
    before = loop_nest([View(one.array, tuple(lead), one.steps[:-3])])
    rest = loop_nest([View(one.array, (high, across), one.steps[-2:])])
    c, n = (min(_TILE, power_of_two(size)) for size in (num, rest.extent))
    grid = (before.extent * -(-num // c) * -(-rest.extent // n),)
    # Constants all: they tell what lies together, and little is left to compute for an element.
    constants = {
        "LEAD": before.sizes,
        "X_LEAD": before.steps[0],
        "X_C": one.steps[-3],
        "REST": rest.sizes,
        "X_REST": rest.steps[0],
        "NUM": rest.extent,
        "NUM_C": num,
    }
    return copy, Launch(_channels_last, grid, (copy, one), constants | {"WIDE": needs_64_bits([one]), "C": c, "N": n})


def grouped_channels_last(one: View) -> tuple[View, Launch]:
    """Images [b,g,c,h,w] copied so that all channels are contiguous, and the launch that makes the copy."""
    batch, groups, num, *size = one.shape
    joined = View(one.array, (batch, groups * num, *size), (one.steps[0], one.steps[2], *one.steps[3:]))
    copy, launch = channels_last(joined)
    return grouped(copy, 1, groups), launch


def without_unit_steps(x: Any) -> View:
    """All of x, with step 0 along dims of one element: their steps say nothing about where vectors begin."""
    one = view(x)
    return one._replace(steps=tuple(0 if n == 1 else step for n, step in zip(one.shape, one.steps, strict=True)))


def as_one_row(one: View) -> View:
    """Images with all of their places in one row."""
    *steps, _, step = one.steps
    num = prod(one.shape[3:])
    return View(one.array, (*one.shape[:3], 1, num), (*steps, num * step, step))


@triton.jit
def _channels_last(out, x, LEAD: tl.constexpr, X_LEAD: tl.constexpr, X_C: tl.constexpr, REST: tl.constexpr,
                   X_REST: tl.constexpr, NUM: tl.constexpr, NUM_C: tl.constexpr, WIDE: tl.constexpr, C: tl.constexpr,
                   N: tl.constexpr):  # fmt: skip
    tiles, across = tl.cdiv(NUM_C, C), tl.cdiv(NUM, N)
    block = tl.program_id(0) // across
    c = (block % tiles * C + tl.arange(0, C))[:, None]
    n = tl.program_id(0) % across * N + tl.arange(0, N)
    image = (block // tiles).to(tl.int64)
    if WIDE:
        c, n = c.to(tl.int64), n.to(tl.int64)
    here = (c < NUM_C) & (n < NUM)[None, :]
    value = tl.load(x + offsets(image, LEAD, X_LEAD) + c * X_C + offsets(n, REST, X_REST)[None, :], mask=here)
    tl.store(out + image * NUM * NUM_C + n[None, :] * NUM_C + c, value, mask=here)

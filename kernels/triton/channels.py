"""Memory whose dims lie in another order, copies of images whose channels lie next to each other, and images seen in
groups of channels.

Windows over such a copy meet whole vectors of channels, which lie inside or outside together. Where columns lie next to
each other a window begins anywhere, and each number is fetched alone. It knows no convolution.
"""

# mypy: disable-error-code="no-untyped-def"

from math import prod
from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.functions import places
from castile.kernels.triton.launch import Launch, Room
from castile.kernels.triton.lines import packed
from castile.kernels.triton.views import Shape, View, nest, power_of_two, view, wide

_TILE = 64


def grouped(one: View, dim: int, groups: int) -> View:
    """The dim as two: groups, and what each holds."""
    size, step = one.shape[dim] // groups, one.steps[dim]
    shape = (*one.shape[:dim], groups, size, *one.shape[dim + 1 :])
    return View(one.array, shape, (*one.steps[:dim], step * size, step, *one.steps[dim + 1 :]))


def held(shape: Shape, dims: Shape, dtype: str = "float32") -> View:
    """Working memory of that shape whose dims lie in this order, the last next to each other."""
    sizes = tuple(shape[dim] for dim in dims)
    steps = dict(zip(dims, packed(sizes), strict=True))
    return View(Room(prod(shape), dtype), shape, tuple(steps[dim] for dim in range(len(shape))))


def channels_last(one: View) -> tuple[View, Launch]:
    """[..., c, h, w] as a copy with channels next to each other in working memory, and the launch that makes it."""
    *lead, num, high, across = one.shape
    last = len(lead)
    copy = held(one.shape, (*range(last), last + 1, last + 2, last), one.array.dtype.name)
    before = nest([View(one.array, tuple(lead), one.steps[:-3])])
    rest = nest([View(one.array, (high, across), one.steps[-2:])])
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
    return copy, Launch(_channels_last, grid, (copy, one), constants | {"WIDE": wide([one]), "C": c, "N": n})


def copied(one: View) -> tuple[View, Launch]:
    """Images [b,g,c,h,w] copied so that all channels lie together."""
    batch, groups, num, *size = one.shape
    joined = View(one.array, (batch, groups * num, *size), (one.steps[0], one.steps[2], *one.steps[3:]))
    copy, launch = channels_last(joined)
    return grouped(copy, 1, groups), launch


def still(x: Any) -> View:
    """All of x, which stands still along dims of one element: no step there tells where vectors begin."""
    one = view(x)
    return one._replace(steps=tuple(0 if n == 1 else step for n, step in zip(one.shape, one.steps, strict=True)))


def in_line(one: View) -> View:
    """Images of one row."""
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
    value = tl.load(x + places(image, LEAD, X_LEAD) + c * X_C + places(n, REST, X_REST)[None, :], mask=here)
    tl.store(out + image * NUM * NUM_C + n[None, :] * NUM_C + c, value, mask=here)

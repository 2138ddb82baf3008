"""Attention that never stores its scores: an online softmax over blocks of keys (Dao 2023).

It knows no projections, and of gradients only that they use the same blocks.
"""

# mypy: disable-error-code="no-untyped-def"

from math import e, log2
from typing import Any, NamedTuple

import triton
from triton import language as tl

from castile.kernels.triton.launch import Launch, LaunchPlan, are_floats, planned
from castile.kernels.triton.views import View, needs_64_bits, power_of_two, split_dims, view

# The widest head whose blocks leave room in registers.
_WIDEST = 256

# Up to so many keys blocks of few queries come first where heads are wide: on an H200 they won at 1024 and at 2048, and
# lost at 8192.
_FEW_KEYS = 4096


class Tile(NamedTuple):
    """Queries and keys of a step, and what float32 is multiplied in, as in the tiles of products."""

    m: int
    n: int
    warps: int
    stages: int
    precision: str = "ieee"


class AttentionShape(NamedTuple):
    """Sizes and options: queries [batch,num_q,heads,width], `shared` neighbouring heads for each head of keys."""

    batch: int
    heads: int
    shared: int
    num_q: int
    num_k: int
    width: int
    causal: bool
    offset: int
    scale: float

    @property
    def flops(self) -> int:
        """Operations of one product over all queries and the keys that they see."""
        pairs = self.num_q * self.num_k
        if self.causal:
            rising = min(self.num_q, max(0, self.num_k - self.offset))
            pairs = rising * (2 * self.offset + rising + 1) // 2 + (self.num_q - rising) * self.num_k
        return 2 * self.batch * self.heads * self.width * pairs

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The scalar arguments of every kernel; the last is the scale for exponents of 2."""
        counts = (self.num_q, self.num_k, self.heads, self.shared, self.offset)
        return (*counts, self.scale * log2(e))

    def fitting(self, tile: Tile) -> Tile:
        """The tile, no larger than there are queries and keys."""
        m, n = (max(16, power_of_two(num)) for num in (self.num_q, self.num_k))
        return tile._replace(m=min(tile.m, m), n=min(tile.n, n))

    def constants(self, tile: Tile, views: list[View]) -> dict[str, Any]:
        """The compile-time constants of every kernel; views are by head."""
        inner = [View(None, one.shape[1:], one.steps[1:]) for one in views]
        return {
            "CAUSAL": self.causal,
            "WIDE": needs_64_bits(inner),
            "PRECISION": tile.precision,
            "WIDTH": self.width,
            "M": tile.m,
            "N": tile.n,
            "D": max(16, power_of_two(self.width)),
        }


def attention_shape(q: Any, kk: Any, heads: int, causal: bool, offset: int, scale: float) -> AttentionShape | None:
    """The shape of an attention; None where there are no keys or the heads are too wide."""
    (batch, num_q, across), (_, num_k, across_k) = q.shape, kk.shape
    width = across // heads
    if num_k * width == 0 or width > _WIDEST:
        return None
    return AttentionShape(batch, heads, across // across_k, num_q, num_k, width, causal, offset, scale)


def split_heads(x: Any, width: int) -> View:
    """x [b,s,heads*width] as [b,s,heads,width]."""
    return split_dims(view(x), (*x.shape[:2], x.shape[2] // width, width))


@planned
def attention(
    out: tuple[Any, Any], q: Any, kk: Any, v: Any, *, heads: int, causal: bool, offset: int, scale: float
) -> LaunchPlan | None:
    """See the definition. Scores and sums are in float32."""
    about = attention_shape(q, kk, heads, causal, offset, scale)
    if not are_floats(*out, q, kk, v) or about is None:
        return None
    if q.size == 0:
        return LaunchPlan((None,), lambda _: [])
    y, lse = split_heads(out[0], about.width), view(out[1])
    views = [y, *(split_heads(x, about.width) for x in (q, kk, v))]
    args = (y.array, y.steps, out[1], lse.steps, *(part for one in views[1:] for part in (one.array, one.steps)))

    def launches(tile: Tile) -> list[Launch]:
        grid = (-(-about.num_q // tile.m) * heads * about.batch,)
        constants = about.constants(tile, views) | {"EVEN": about.num_k % tile.n == 0}
        fast = q.dtype.itemsize == 2 or tile.precision != "ieee"
        everything = (*args, *about.numbers)
        return [Launch(_attention, grid, everything, constants, tile.warps, tile.stages, 2 * about.flops, fast)]

    return LaunchPlan(tuple(dict.fromkeys(map(about.fitting, _tiles(about, q.dtype.itemsize)))), launches)


def _tiles(about: AttentionShape, itemsize: int) -> tuple[Tile, ...]:
    """Of halves the first lets two or more blocks share a processor, so that the softmax of one goes with the products
    of the other. Wider blocks read keys less often: they come first where heads are wide and queries see many keys.
    """
    if itemsize == 4:
        first = Tile(32, 32, 4, 2) if about.width <= 64 else Tile(32, 16, 8, 2)
        return (first, Tile(64, 32, 4, 2, "tf32x3"), Tile(64, 32, 8, 2))
    if about.width <= 64:
        return (Tile(64, 64, 4, 3), Tile(128, 64, 8, 3), Tile(64, 128, 4, 2), Tile(128, 64, 4, 3))
    if about.width <= 128:
        shared, alone = Tile(64, 64, 4, 3), Tile(128, 64, 8, 3)
        few = about.num_k <= _FEW_KEYS
        return (*((shared, alone) if few else (alone, shared)), Tile(128, 64, 4, 2), Tile(64, 32, 4, 3))
    return (Tile(64, 64, 8, 2), Tile(128, 32, 8, 3), Tile(128, 64, 8, 2), Tile(64, 32, 8, 3))


@triton.jit
def places_of(row, steps, D: tl.constexpr):
    """Where rows of a head lie from where the head begins, whose dims after the sample are position, head, element."""
    return row[:, None] * steps[1] + tl.arange(0, D)[None, :] * steps[3]


@triton.jit
def rows_of(at, row, num, ALL: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    """The rows of a head that lie at `at`, 0 beyond the last unless ALL are there, and beyond its width."""
    # A mask that is true everywhere still costs registers and keeps loads apart.
    if ALL and WIDTH == D:
        x = tl.load(at)
    elif ALL:
        x = tl.load(at, mask=tl.arange(0, D)[None, :] < WIDTH, other=0.0)
    else:
        x = tl.load(at, mask=(row < num)[:, None] & (tl.arange(0, D)[None, :] < WIDTH), other=0.0)
    return x


@triton.jit
def put_rows(at, x, row, num, WIDTH: tl.constexpr, D: tl.constexpr):
    """Write rows of a head."""
    mask = (row < num)[:, None] & (tl.arange(0, D)[None, :] < WIDTH)
    tl.store(at, x.to(at.dtype.element_ty), mask=mask)


@triton.jit
def queries(num_q, num_k, heads, offset, CAUSAL: tl.constexpr, WIDE: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Of a program with a block of queries: these, the head, the sample, the last key that each of them sees, how many
    keys lie in blocks that all of them see in whole, and how many some of them see.
    """
    blocks = tl.cdiv(num_q, M)
    # Those that see most keys come first, so that none of them is left to the end.
    first = (blocks - 1 - tl.program_id(0) % blocks) * M
    head = tl.program_id(0) // blocks % heads
    batch = (tl.program_id(0) // blocks // heads).to(tl.int64)
    row = first + tl.arange(0, M)
    if CAUSAL:
        last = tl.minimum(row + offset, num_k - 1)
        whole = tl.minimum(num_k, first + offset + 1) // N * N
        seen = tl.minimum(num_k, first + offset + M)
    else:
        last = row * 0 + (num_k - 1)
        whole = num_k // N * N
        seen = num_k
    if WIDE:
        row = row.to(tl.int64)
    return row, head, batch, last, whole, seen


@triton.jit
def _along(total, weight, top, x, kk, k_steps, v, v_steps, begin, end, last, num_k, scale,
           ALL: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr,
           N: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """The softmax carried on over the keys from begin to end: its sum over values, of weights, and its exponent.

    ALL: every query sees them all. EVEN: the last block of keys is a whole one.
    """
    for start in range(begin, end, N):
        key = start + tl.arange(0, N)
        if WIDE:
            key = key.to(tl.int64)
        k = rows_of(kk + places_of(key, k_steps, D), key, num_k, EVEN, WIDTH, D)
        s = tl.dot(x, tl.trans(k), input_precision=PRECISION)
        if not ALL:
            s = tl.where(key[None, :] <= last[:, None], s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - higher[:, None])
        fade = tl.exp2(top - higher)
        weight = weight * fade + tl.sum(p, 1)
        u = rows_of(v + places_of(key, v_steps, D), key, num_k, EVEN, WIDTH, D)
        total = tl.dot(p.to(u.dtype), u, total * fade[:, None], input_precision=PRECISION)
        top = higher
    return total, weight, top


@triton.jit
def _attention(y, y_steps, lse, l_steps, q, q_steps, kk, k_steps, v, v_steps,
               num_q, num_k, heads, shared, offset, scale,
               CAUSAL: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr,
               M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    row, head, batch, last, whole, seen = queries(num_q, num_k, heads, offset, CAUSAL, WIDE, M, N)
    q += batch * q_steps[0] + head * q_steps[2]
    kk += batch * k_steps[0] + head // shared * k_steps[2]
    v += batch * v_steps[0] + head // shared * v_steps[2]
    x = rows_of(q + places_of(row, q_steps, D), row, num_q, False, WIDTH, D)
    total = tl.zeros((M, D), tl.float32)
    weight = tl.zeros((M,), tl.float32)
    top = tl.full((M,), float("-inf"), tl.float32)
    total, weight, top = _along(
        total, weight, top, x, kk, k_steps, v, v_steps, 0, whole, last, num_k, scale, True, True, WIDE, PRECISION,
        WIDTH, N, D
    )  # fmt: skip
    if CAUSAL or not EVEN:
        total, weight, top = _along(
            total, weight, top, x, kk, k_steps, v, v_steps, whole, seen, last, num_k, scale, False, EVEN, WIDE,
            PRECISION, WIDTH, N, D
        )  # fmt: skip
    y += batch * y_steps[0] + head * y_steps[2]
    put_rows(y + places_of(row, y_steps, D), total / weight[:, None], row, num_q, WIDTH, D)
    lse += batch * l_steps[0] + head * l_steps[1] + row * l_steps[2]
    tl.store(lse, (top + tl.log2(weight)) * 0.6931471805599453, mask=row < num_q)

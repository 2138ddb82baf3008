"""Gradients of attention, whose scores are computed again from the log-sum-exp (Dao 2023).

One kernel has a block of queries and walks the keys, another a block of keys and walks the queries of every head that
shares them: each score is computed twice, but nobody adds to what another wrote, so that the order of every sum is
known. It knows no projections.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.attention import (
    AttentionShape,
    Tile,
    attention_shape,
    places_of,
    put_rows,
    queries,
    rows_of,
    split_heads,
)
from castile.kernels.triton.functions import LOG2_E
from castile.kernels.triton.launch import Launch, LaunchPlan, Workspace, are_floats, planned
from castile.kernels.triton.views import View, view


@planned
def attention_grad(
    out: tuple[Any, Any, Any],
    dy: Any,
    q: Any,
    kk: Any,
    v: Any,
    y: Any,
    lse: Any,
    *,
    heads: int,
    causal: bool,
    offset: int,
    scale: float,
) -> LaunchPlan | None:
    """See the definition. Scores and sums are in float32."""
    about = attention_shape(q, kk, heads, causal, offset, scale)
    if not are_floats(*out, dy, q, kk, v, y, lse) or about is None:
        return None
    if about.batch == 0:
        return LaunchPlan((None,), lambda _: [])
    views = [split_heads(x, about.width) for x in (*out, dy, q, kk, v, y)]

    def launches(tiles: tuple[Tile, Tile]) -> list[Launch]:
        # The sums of dy * y of each query, which the first kernel leaves to the second.
        room = Workspace(max(1, about.batch * heads * about.num_q))
        return [*_to_queries(about, tiles[0], views, lse, room), _to_keys(about, tiles[1], views, lse, room)]

    columns = views[0].steps[-1] != 1
    pairs = [tuple(map(about.fitting, pair)) for pair in _tiles(about.width, q.dtype.itemsize, columns)]
    return LaunchPlan(tuple(dict.fromkeys(pairs)), launches)


def _tiles(width: int, itemsize: int, columns: bool) -> tuple[tuple[Tile, Tile], ...]:
    """Those of the gradient of queries, and of those of keys and values, which holds two sums; see those forward.

    columns: whether the gradient of queries is written by columns.
    """
    if itemsize == 4:
        first = (Tile(32, 16, 4, 2), Tile(32, 16, 8, 2))
        if width <= 64:
            # Four warps that write by columns leave out registers.
            first = (Tile(32, 32, 8 if columns else 4, 2), Tile(32, 32, 8, 3))
        return (first, (Tile(32, 32, 4, 2, "tf32x3"), Tile(32, 32, 4, 2, "tf32x3")))
    if width <= 64:
        return (
            (Tile(64, 64, 4, 3), Tile(64, 64, 4, 2)),
            (Tile(128, 64, 8, 3), Tile(32, 128, 8, 3)),
        )
    if width <= 128:
        return (
            (Tile(64, 64, 4, 2), Tile(32, 64, 4, 3)),
            (Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
            (Tile(128, 128, 8, 2), Tile(64, 128, 8, 2)),
        )
    return ((Tile(64, 32, 8, 2), Tile(32, 32, 8, 2)), (Tile(32, 32, 8, 2), Tile(16, 64, 8, 2)))


def _operands(*views: View) -> tuple[Any, ...]:
    return tuple(part for one in views for part in (one.array, one.steps))


def _to_queries(about: AttentionShape, tile: Tile, views: list[View], lse: Any, room: Workspace) -> list[Launch]:
    dq, _, _, dy, q, kk, v, y = views
    if about.num_q == 0:
        return []
    grid = (-(-about.num_q // tile.m) * about.heads * about.batch,)
    args = (*_operands(dq, dy, y, q, kk, v), lse, view(lse).steps, room, *about.numbers, about.scale)
    constants = about.constants(tile, views) | {"EVEN": about.num_k % tile.n == 0}
    fast = q.array.dtype.itemsize == 2 or tile.precision != "ieee"
    return [Launch(_grad_of_queries, grid, args, constants, tile.warps, tile.stages, 3 * about.flops, fast)]


def _to_keys(about: AttentionShape, tile: Tile, views: list[View], lse: Any, room: Workspace) -> Launch:
    _, dk, dv, dy, q, kk, v, _ = views
    grid = (-(-about.num_k // tile.n) * about.heads // about.shared * about.batch,)
    args = (*_operands(dk, dv, dy, q, kk, v), lse, view(lse).steps, room, *about.numbers, about.scale)
    constants = about.constants(tile, views) | {"EVEN": about.num_q % tile.m == 0}
    fast = q.array.dtype.itemsize == 2 or tile.precision != "ieee"
    return Launch(_grad_of_keys, grid, args, constants, tile.warps, tile.stages, 4 * about.flops, fast)


@triton.jit
def _over_keys(total, x, g, less, least, kk, k_steps, v, v_steps, begin, end, last, num_k, scale, ALL: tl.constexpr,
               EVEN: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr,
               D: tl.constexpr):  # fmt: skip
    """The gradient of queries x carried on over the keys from begin to end, but for the scale; g is dy."""
    for start in range(begin, end, N):
        key = start + tl.arange(0, N)
        if WIDE:
            key = key.to(tl.int64)
        k = rows_of(kk + places_of(key, k_steps, D), key, num_k, EVEN, WIDTH, D)
        u = rows_of(v + places_of(key, v_steps, D), key, num_k, EVEN, WIDTH, D)
        s = tl.dot(x, tl.trans(k), input_precision=PRECISION)
        dp = tl.dot(g, tl.trans(u), input_precision=PRECISION)
        p = tl.exp2(s * scale - least[:, None])
        if not ALL:
            p = tl.where(key[None, :] <= last[:, None], p, 0.0)
        ds = p * (dp - less[:, None])
        total = tl.dot(ds.to(k.dtype), k, total, input_precision=PRECISION)
    return total


@triton.jit
def _grad_of_queries(dq, d_steps, dy, g_steps, y, y_steps, q, q_steps, kk, k_steps, v, v_steps, lse, l_steps, inner,
                     num_q, num_k, heads, shared, offset, scale, factor,
                     CAUSAL: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr,
                     M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    row, head, batch, last, whole, seen = queries(num_q, num_k, heads, offset, CAUSAL, WIDE, M, N)
    q += batch * q_steps[0] + head * q_steps[2]
    dy += batch * g_steps[0] + head * g_steps[2]
    y += batch * y_steps[0] + head * y_steps[2]
    kk += batch * k_steps[0] + head // shared * k_steps[2]
    v += batch * v_steps[0] + head // shared * v_steps[2]
    x = rows_of(q + places_of(row, q_steps, D), row, num_q, False, WIDTH, D)
    g = rows_of(dy + places_of(row, g_steps, D), row, num_q, False, WIDTH, D)
    shown = rows_of(y + places_of(row, y_steps, D), row, num_q, False, WIDTH, D)
    less = tl.sum(g.to(tl.float32) * shown.to(tl.float32), 1)
    tl.store(inner + (batch * heads + head) * num_q + row, less, mask=row < num_q)
    lse += batch * l_steps[0] + head * l_steps[1] + row * l_steps[2]
    least = tl.load(lse, mask=row < num_q, other=0.0) * LOG2_E
    total = tl.zeros((M, D), tl.float32)
    total = _over_keys(
        total, x, g, less, least, kk, k_steps, v, v_steps, 0, whole, last, num_k, scale, True, True, WIDE, PRECISION,
        WIDTH, N, D
    )  # fmt: skip
    if CAUSAL or not EVEN:
        total = _over_keys(
            total, x, g, less, least, kk, k_steps, v, v_steps, whole, seen, last, num_k, scale, False, EVEN, WIDE,
            PRECISION, WIDTH, N, D
        )  # fmt: skip
    dq += batch * d_steps[0] + head * d_steps[2]
    put_rows(dq + places_of(row, d_steps, D), total * factor, row, num_q, WIDTH, D)


@triton.jit
def _grad_of_keys(dk, dk_steps, dv, dv_steps, dy, g_steps, q, q_steps, kk, k_steps, v, v_steps, lse, l_steps, inner,
                  num_q, num_k, heads, shared, offset, scale, factor,
                  CAUSAL: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr,
                  M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    blocks = tl.cdiv(num_k, N)
    first = tl.program_id(0) % blocks * N
    group = tl.program_id(0) // blocks % (heads // shared)
    batch = (tl.program_id(0) // blocks // (heads // shared)).to(tl.int64)
    key = first + tl.arange(0, N)
    if WIDE:
        key = key.to(tl.int64)
    kk += batch * k_steps[0] + group * k_steps[2]
    v += batch * v_steps[0] + group * v_steps[2]
    k = rows_of(kk + places_of(key, k_steps, D), key, num_k, False, WIDTH, D)
    u = rows_of(v + places_of(key, v_steps, D), key, num_k, False, WIDTH, D)
    to_keys, to_values = tl.zeros((N, D), tl.float32), tl.zeros((N, D), tl.float32)
    q += batch * q_steps[0]
    dy += batch * g_steps[0]
    lse += batch * l_steps[0]
    inner += batch * heads * num_q
    # Blocks of queries before `some` see none of these keys.
    some = 0
    if CAUSAL:
        some = tl.maximum(0, first - offset) // M
    each = tl.maximum(0, tl.cdiv(num_q, M) - some)
    # One loop over heads and queries, so that what the next head begins with is under way when this one ends.
    for n in range(each * shared):
        head = group * shared + n // each
        row = (some + n % each) * M + tl.arange(0, M)
        if WIDE:
            row = row.to(tl.int64)
        x = rows_of(q + head * q_steps[2] + places_of(row, q_steps, D), row, num_q, EVEN, WIDTH, D)
        # Of queries beyond the last dy is 0, and with it what they add.
        g = rows_of(dy + head * g_steps[2] + places_of(row, g_steps, D), row, num_q, EVEN, WIDTH, D)
        if EVEN:
            least = tl.load(lse + head * l_steps[1] + row * l_steps[2])
            less = tl.load(inner + head * num_q + row)
        else:
            least = tl.load(lse + head * l_steps[1] + row * l_steps[2], mask=row < num_q, other=0.0)
            less = tl.load(inner + head * num_q + row, mask=row < num_q, other=0.0)
        s = tl.dot(k, tl.trans(x), input_precision=PRECISION)
        p = tl.exp2(s * scale - least[None, :] * LOG2_E)
        if CAUSAL:
            p = tl.where(key[:, None] <= (row + offset)[None, :], p, 0.0)
        to_values = tl.dot(p.to(g.dtype), g, to_values, input_precision=PRECISION)
        # What is taken from the product is what it begins with: registers that would hold it until then are too few.
        dp = tl.dot(u, tl.trans(g), tl.broadcast_to(-less[None, :], (N, M)), input_precision=PRECISION)
        to_keys = tl.dot((p * dp).to(x.dtype), x, to_keys, input_precision=PRECISION)
    dk += batch * dk_steps[0] + group * dk_steps[2]
    dv += batch * dv_steps[0] + group * dv_steps[2]
    put_rows(dk + places_of(key, dk_steps, D), to_keys * factor, key, num_k, WIDTH, D)
    put_rows(dv + places_of(key, dv_steps, D), to_values, key, num_k, WIDTH, D)

"""Products of matrices whose blocks the copy engine of Hopper and later chips fetches by tensor descriptors.

Programs walk over tiles of the result, one a processor, so that operands of the next are on their way while a tile is
written. Kernels of products get their lines of arithmetic here, too. It knows no contraction; what cannot be described
so, and other chips, need another kernel.
"""

# mypy: disable-error-code="no-untyped-def"

import inspect
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

import triton
from triton import language as tl

from castile.kernels.triton.functions import places
from castile.kernels.triton.launch import ALIGNED, Blocks, Launch, Room
from castile.kernels.triton.lines import Finish, Text, block_of, finished, function_of, kernel_of, named, operations
from castile.kernels.triton.views import Nest, Shape, View, nest, permuted, wide


class Product(NamedTuple):
    """The labels by who bears them: m first operand and result, n second and result, k both operands, l all three.

    Steps are those of the result, the first and the second operand, as far as these bear the label.
    """

    m: Nest
    n: Nest
    k: Nest
    l: Nest


class Walk(NamedTuple):
    """How a product is cut: rows, columns and summed elements of a step.

    walks: programs, one a processor, go from tile to tile, in one loop that fetches ahead beyond the end of a tile;
    else there is a program a tile.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    walks: bool


WALKS = (
    Walk(128, 256, 64, 8, 3, True),
    Walk(128, 256, 64, 8, 3, False),
    Walk(128, 128, 64, 8, 3, False),
)
# The capability of the first chips with a copy engine, times ten.
SINCE = 90
# What kernels say where their sums are made: `total` [M,N] of rows m and columns n of a batch.
_MADE = "# Sums are made."


def finishing(plain: Launch, finish: Finish, shape: Shape, dims: tuple[Shape, Shape, Shape]) -> Launch:
    """The launch of a product that works a line out on its sums.

    shape, dims: of the result, and which of its dims are batches, rows and columns.
    """
    what, xs, numbers = finish
    still = View(None, shape, (0,) * len(shape))
    nests = [nest([permuted(x, one) for x in (still, *xs)]) for one in dims]
    each = list(zip(*(one.steps[1:] for one in nests), strict=True))
    own = [part for x, steps in zip(xs, each, strict=True) for part in (x, *steps)]
    sizes = [one.sizes for one in nests] if xs else []
    even = tuple(one.extent % plain.constants[size] == 0 for one, size in zip(nests[1:], "MN", strict=True))
    return replace(
        plain,
        kernel=_finishing(plain.kernel, what, tuple(tuple(map(any, steps)) for steps in each), even),
        args=(*own, *sizes, *numbers, *plain.args),
        constants=plain.constants | {"WIDE": plain.constants["WIDE"] or wide(list(xs))},
        flops=plain.flops + prod(shape) * operations(what),
        nbytes=plain.nbytes and plain.nbytes + sum(x.nbytes for x in xs),
    )


@cache
def _finishing(kernel: Any, what: Text, moves: tuple[tuple[bool, ...], ...], even: tuple[bool, ...]) -> Any:
    """The kernel with a line where its sums are made.

    moves: of each array whether along batches, rows and columns. even: whether blocks are full of rows, and of columns.
    """
    arrays, numbers = named(what)
    # A mask that is true everywhere still costs registers.
    rows, cols = ("None" if full else one for full, one in zip(even, ("m < num_m", "n < num_n"), strict=True))
    here = " & ".join([f"({rows})[:, None]"] * (not even[0]) + [f"({cols})[None, :]"] * (not even[1])) or "None"
    made = []
    for y, (apart, down, across) in zip(arrays, moves, strict=True):
        pointer = f"p_{y}" + f" + places(batch.to(tl.int64), y_l, l_{y})" * apart
        block = block_of(pointer, f"places(m, y_m, m_{y})" * down, f"places(n, y_n, n_{y})" * across, here, rows, cols)
        made.append(f"{y} = {block}.to(tl.float32)")
    made.append(f"total = {finished(what, 'total')}")
    words = [f"{of}_{y}" for y in arrays for of in "plmn"] + ["y_l", "y_m", "y_n"] * bool(arrays) + numbers
    source = inspect.getsource(kernel.fn)
    start = f"def {kernel.fn.__name__}("
    assert start in source and _MADE in source, f"{start}: where are its sums made?"
    source = source[source.index(start) :].replace(start, f"def {{name}}({''.join(f'{word}, ' for word in words)}")
    call = function_of(what)
    return kernel_of(source.replace(_MADE, "{made}"), {"made": made}, {}, kernel.fn.__globals__ | {call.__name__: call})


class Operand(NamedTuple):
    """An operand as a descriptor sees it: dims of l, rows, columns. It is `turned` if what is summed are its rows."""

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    turned: bool


def operands(product: Product, x: Any, y: Any) -> tuple[Operand, Operand] | None:
    """Both as descriptors see them, None where one cannot be described."""
    first = _operand(product, 1, product.m, x)
    second = _operand(product, 2, product.n, y)
    return (first, second) if first and second else None


def _operand(product: Product, which: int, side: Nest, x: Any) -> Operand | None:
    k, l = product.k, product.l
    if len(side.sizes) > 1 or len(k.sizes) > 1 or len(l.sizes) > 2 or x.dtype.itemsize != 2:
        return None
    (row,), (col,) = side.steps[1], k.steps[which - 1]
    turned = col != 1
    sizes = (k.extent, side.extent) if turned else (side.extent, k.extent)
    inner, outer = (row, col) if turned else (col, row)
    batch = [(size, step) for size, step in zip(l.sizes, l.steps[which], strict=True) if l.extent > 1]
    steps = (*(step for _, step in batch), outer)
    if inner != 1 or not all(0 < step < 2**36 and step * x.itemsize % ALIGNED == 0 for step in steps):
        return None
    return Operand((*(size for size, _ in batch), *sizes), (*steps, 1), turned)


def walk(
    product: Product, how: Walk, both: tuple[Operand, Operand], span: int, arrays: tuple[Any, Any, Any], adds: bool
) -> Launch:
    """The launch that sums `span` elements for each of the parts, which lie in the result one behind the other."""
    m, n, k, l = product
    out, x, y = arrays
    first, second = both
    blocks = []
    for operand, array, size in ((first, x, how.m), (second, y, how.n)):
        block = (how.k, size) if operand.turned else (size, how.k)
        blocks.append(Blocks(array, operand.shape, operand.steps, (*(1 for _ in operand.shape[2:]), *block)))
    tiles = -(-m.extent // how.m) * -(-n.extent // how.n)
    parts = -(-k.extent // span)
    num = tiles * l.extent * parts
    reach = View(None, (*m.sizes, *n.sizes), (*m.steps[0], *n.steps[0]))
    constants = {
        "A_TURNED": first.turned,
        "B_TURNED": second.turned,
        "BATCHES": len(first.shape) - 2,
        "WALKS": how.walks,
        "WIDE": wide([reach]),
        "ADDS": adds,
        "M": how.m,
        "N": how.n,
        "K": how.k,
    }
    args = (out, *blocks, m.sizes, m.steps[0], n.sizes, n.steps[0], l.sizes, l.steps[0])
    counts = (m.extent, n.extent, k.extent, num, l.extent, span, m.extent * n.extent * l.extent)
    flops = 2 * m.extent * n.extent * k.extent * l.extent
    size = 4 if isinstance(out, Room) else 2
    nbytes = l.extent * (parts * size * m.extent * n.extent + 2 * k.extent * (m.extent + n.extent))
    return Launch(
        _walk_tiles, (num,), (*args, *counts), constants, how.warps, how.stages, flops, True, nbytes,
        since=SINCE, walks=how.walks,
    )  # fmt: skip


@triton.jit
def _fetched(blocks, batch, l_sizes, row, col, BATCHES: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """A block of an operand of one batch."""
    if BATCHES == 0:
        return blocks.load([row, col])
    elif BATCHES == 1:
        return blocks.load([batch, row, col]).reshape(ROWS, COLS)
    else:
        return blocks.load([batch // l_sizes[1], batch % l_sizes[1], row, col]).reshape(ROWS, COLS)


@triton.jit
def _walk_tiles(c, a, b, m_sizes, c_m, n_sizes, c_n, l_sizes, c_l, num_m, num_n, num_k, num, num_l, span, part_step,
                A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, BATCHES: tl.constexpr, WALKS: tl.constexpr,
                WIDE: tl.constexpr, ADDS: tl.constexpr,
                M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # fmt: skip
    down, across = tl.cdiv(num_m, M), tl.cdiv(num_n, N)
    for tile in tl.range(tl.program_id(0), num, tl.num_programs(0), flatten=WALKS):
        batch, part = tile // (down * across) % num_l, tile // (down * across) // num_l
        # Programs that run together take tiles of 8 rows of tiles, column by column, which share operands in the cache.
        here = tile % (down * across)
        group = here // (8 * across)
        height = tl.minimum(down - group * 8, 8)
        row = (group * 8 + here % (8 * across) % height) * M
        col = here % (8 * across) // height * N
        total = tl.zeros((M, N), tl.float32)
        for k in range(part * span, tl.minimum(part * span + span, num_k), K):
            if A_TURNED:
                x = _fetched(a, batch, l_sizes, k, row, BATCHES, K, M).T
            else:
                x = _fetched(a, batch, l_sizes, row, k, BATCHES, M, K)
            if B_TURNED:
                y = _fetched(b, batch, l_sizes, k, col, BATCHES, K, N)
            else:
                y = _fetched(b, batch, l_sizes, col, k, BATCHES, N, K).T
            total = tl.dot(x, y, total)
        m, n = row + tl.arange(0, M), col + tl.arange(0, N)
        inside = (m < num_m)[:, None] & (n < num_n)[None, :]
        if WIDE:
            m, n = m.to(tl.int64), n.to(tl.int64)
        # Sums are made.
        to = c + places(batch.to(tl.int64), l_sizes, c_l) + part.to(tl.int64) * part_step
        at = to + places(m, m_sizes, c_m)[:, None] + places(n, n_sizes, c_n)[None, :]
        if ADDS:
            total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        tl.store(at, total.to(c.dtype.element_ty), mask=inside)

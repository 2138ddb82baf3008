"""Matrix products whose blocks are loaded by TMA, the copy engine of Hopper and later chips, through tensor
descriptors.

Programs are persistent: each walks over tiles of the result, so that the next tile's operands are loaded while one is
written. Epilogues of any product's kernel are inserted here, too. It knows no contraction. Other chips, and operands
that descriptors cannot describe, need another kernel.
"""

# mypy: disable-error-code="no-untyped-def"

import inspect
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

import triton
from triton import language as tl

from castile.kernels.triton.codegen import load_block
from castile.kernels.triton.functions import offsets
from castile.kernels.triton.launch import ALIGNED, BlockDescriptor, Launch, Workspace
from castile.kernels.triton.snippet import (
    Epilogue,
    Snippet,
    device_function,
    epilogue_names,
    epilogue_value,
    generated_kernel,
    num_operations,
)
from castile.kernels.triton.views import LoopNest, Shape, View, loop_nest, needs_64_bits, permuted


class Gemm(NamedTuple):
    """The loops of a contraction by who has them: m first operand and result, n second and result, k both operands, l
    all.

    Steps are those of the result, the first and the second operand, as far as these have the dim.
    """

    m: LoopNest
    n: LoopNest
    k: LoopNest
    l: LoopNest


class TmaTile(NamedTuple):
    """Rows, columns and summed elements of a step.

    is_persistent  one program a multiprocessor goes from tile to tile, in one loop that prefetches beyond the end of a
                   tile; otherwise each tile has a program
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    is_persistent: bool


TMA_TILES = (
    TmaTile(128, 256, 64, 8, 3, True),
    TmaTile(128, 256, 64, 8, 3, False),
    TmaTile(128, 128, 64, 8, 3, False),
)
# The capability of the first chips with a copy engine, times ten.
TMA_CAPABILITY = 90
# What kernels say where their sums are made: `total` [M,N] of rows m and columns n of a batch.
_MADE = "# Sums are made."


def with_epilogue(plain: Launch, epilogue: Epilogue, shape: Shape, dims: tuple[Shape, Shape, Shape]) -> Launch:
    """The launch of a product with an epilogue applied to its sums.

    shape, dims  of the result, and which of its dims are batches, rows and columns
    """
    code, xs, numbers = epilogue
    still = View(None, shape, (0,) * len(shape))
    nests = [loop_nest([permuted(x, one) for x in (still, *xs)]) for one in dims]
    each = list(zip(*(one.steps[1:] for one in nests), strict=True))
    own = [part for x, steps in zip(xs, each, strict=True) for part in (x, *steps)]
    sizes = [one.sizes for one in nests] if xs else []
    even = tuple(one.extent % plain.constants[size] == 0 for one, size in zip(nests[1:], "MN", strict=True))
    return replace(
        plain,
        kernel=_epilogue_kernel(plain.kernel, code, tuple(tuple(map(any, steps)) for steps in each), even),
        args=(*own, *sizes, *numbers, *plain.args),
        constants=plain.constants | {"WIDE": plain.constants["WIDE"] or needs_64_bits(list(xs))},
        flops=plain.flops + prod(shape) * num_operations(code),
        nbytes=plain.nbytes and plain.nbytes + sum(x.nbytes for x in xs),
    )


@cache
def _epilogue_kernel(kernel: Any, code: Snippet, moves: tuple[tuple[bool, ...], ...], even: tuple[bool, ...]) -> Any:
    """The kernel with the epilogue inserted where its sums are complete.

    moves  of each array whether it varies along batches, rows and columns
    even   whether blocks are full of rows, and of columns
    """
    arrays, numbers = epilogue_names(code)
    # A mask that is true everywhere still costs registers.
    rows, cols = ("None" if full else one for full, one in zip(even, ("m < num_m", "n < num_n"), strict=True))
    here = " & ".join([f"({rows})[:, None]"] * (not even[0]) + [f"({cols})[None, :]"] * (not even[1])) or "None"
    made = []
    for y, (apart, down, across) in zip(arrays, moves, strict=True):
        pointer = f"p_{y}" + f" + offsets(batch.to(tl.int64), y_l, l_{y})" * apart
        block = load_block(
            pointer, f"offsets(m, y_m, m_{y})" * down, f"offsets(n, y_n, n_{y})" * across, here, rows, cols
        )
        made.append(f"{y} = {block}.to(tl.float32)")
    made.append(f"total = {epilogue_value(code, 'total')}")
    words = [f"{of}_{y}" for y in arrays for of in "plmn"] + ["y_l", "y_m", "y_n"] * bool(arrays) + numbers
    source = inspect.getsource(kernel.fn)
    start = f"def {kernel.fn.__name__}("
    assert start in source and _MADE in source, f"{start}: where are its sums made?"
    source = source[source.index(start) :].replace(start, f"def {{name}}({''.join(f'{word}, ' for word in words)}")
    call = device_function(code)
    return generated_kernel(
        source.replace(_MADE, "{made}"), {"made": made}, {}, kernel.fn.__globals__ | {call.__name__: call}
    )


class TmaOperand(NamedTuple):
    """An operand as a descriptor sees it: dims of l, rows, columns; `is_transposed` if the summed dim is its rows."""

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    is_transposed: bool


def tma_operands(product: Gemm, x: Any, y: Any) -> tuple[TmaOperand, TmaOperand] | None:
    """Both operands as descriptors see them, None where one cannot be described."""
    first = _tma_operand(product, 1, product.m, x)
    second = _tma_operand(product, 2, product.n, y)
    return (first, second) if first and second else None


def _tma_operand(product: Gemm, which: int, side: LoopNest, x: Any) -> TmaOperand | None:
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
    return TmaOperand((*(size for size, _ in batch), *sizes), (*steps, 1), turned)


def tma_gemm(
    product: Gemm,
    how: TmaTile,
    both: tuple[TmaOperand, TmaOperand],
    span: int,
    arrays: tuple[Any, Any, Any],
    adds: bool,
) -> Launch:
    """The launch that sums `span` elements for each part, the parts contiguous in the result."""
    m, n, k, l = product
    out, x, y = arrays
    first, second = both
    blocks = []
    for operand, array, size in ((first, x, how.m), (second, y, how.n)):
        block = (how.k, size) if operand.is_transposed else (size, how.k)
        blocks.append(BlockDescriptor(array, operand.shape, operand.steps, (*(1 for _ in operand.shape[2:]), *block)))
    tiles = -(-m.extent // how.m) * -(-n.extent // how.n)
    parts = -(-k.extent // span)
    num = tiles * l.extent * parts
    reach = View(None, (*m.sizes, *n.sizes), (*m.steps[0], *n.steps[0]))
    constants = {
        "A_TURNED": first.is_transposed,
        "B_TURNED": second.is_transposed,
        "BATCHES": len(first.shape) - 2,
        "WALKS": how.is_persistent,
        "WIDE": needs_64_bits([reach]),
        "ADDS": adds,
        "M": how.m,
        "N": how.n,
        "K": how.k,
    }
    args = (out, *blocks, m.sizes, m.steps[0], n.sizes, n.steps[0], l.sizes, l.steps[0])
    counts = (m.extent, n.extent, k.extent, num, l.extent, span, m.extent * n.extent * l.extent)
    flops = 2 * m.extent * n.extent * k.extent * l.extent
    size = 4 if isinstance(out, Workspace) else 2
    nbytes = l.extent * (parts * size * m.extent * n.extent + 2 * k.extent * (m.extent + n.extent))
    return Launch(
        _tma_gemm, (num,), (*args, *counts), constants, how.warps, how.stages, flops, True, nbytes,
        min_capability=TMA_CAPABILITY, is_persistent=how.is_persistent,
    )  # fmt: skip


@triton.jit
def _load_block(blocks, batch, l_sizes, row, col, BATCHES: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """A block of an operand of one batch."""
    if BATCHES == 0:
        return blocks.load([row, col])
    elif BATCHES == 1:
        return blocks.load([batch, row, col]).reshape(ROWS, COLS)
    else:
        return blocks.load([batch // l_sizes[1], batch % l_sizes[1], row, col]).reshape(ROWS, COLS)


@triton.jit
def _tma_gemm(c, a, b, m_sizes, c_m, n_sizes, c_n, l_sizes, c_l, num_m, num_n, num_k, num, num_l, span, part_step,
              A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, BATCHES: tl.constexpr, WALKS: tl.constexpr,
              WIDE: tl.constexpr, ADDS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # fmt: skip
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
                x = _load_block(a, batch, l_sizes, k, row, BATCHES, K, M).T
            else:
                x = _load_block(a, batch, l_sizes, row, k, BATCHES, M, K)
            if B_TURNED:
                y = _load_block(b, batch, l_sizes, k, col, BATCHES, K, N)
            else:
                y = _load_block(b, batch, l_sizes, col, k, BATCHES, N, K).T
            total = tl.dot(x, y, total)
        m, n = row + tl.arange(0, M), col + tl.arange(0, N)
        inside = (m < num_m)[:, None] & (n < num_n)[None, :]
        if WIDE:
            m, n = m.to(tl.int64), n.to(tl.int64)
        # Sums are made.
        to = c + offsets(batch.to(tl.int64), l_sizes, c_l) + part.to(tl.int64) * part_step
        at = to + offsets(m, m_sizes, c_m)[:, None] + offsets(n, n_sizes, c_n)[None, :]
        if ADDS:
            total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        tl.store(at, total.to(c.dtype.element_ty), mask=inside)

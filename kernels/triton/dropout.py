"""Dropout by the counter-based generator: where an element lies in the whole decides, whatever the pieces.

It knows no layer.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.codegen import contiguous_steps
from castile.kernels.triton.functions import offsets
from castile.kernels.triton.launch import Launch, LaunchPlan, are_floats, planned
from castile.kernels.triton.views import Shape, View, loop_nest, power_of_two, view

# Operations of ten rounds of the generator, shared by four elements where they are neighbours in the whole.
_ROUNDS = 100


@planned
def dropout(
    out: Any, x: Any, noise: Any, *, rate: float, salt: int, offset: Shape, whole: Shape, accumulate: bool
) -> LaunchPlan | None:
    """See the definition."""
    if not are_floats(out, x):
        return None
    # The index in the whole is walked as if it were an array, by steps of its own.
    steps = contiguous_steps(tuple(whole))
    first = sum(start * step for start, step in zip(offset, steps, strict=True))
    walk = loop_nest([view(out), view(x), View(None, tuple(x.shape), steps)])
    if walk.extent == 0:
        return LaunchPlan((None,), lambda _: [])
    cols, lead = walk.sizes[-1], walk.sizes[:-1] or (1,)
    inner = [one[-1] for one in walk.steps]
    outer = [one[:-1] or (0,) for one in walk.steps]
    fours = inner[2] == 1 and cols % 4 == 0 and all(step % 4 == 0 for step in (first, *outer[2]))
    rows = walk.extent // cols
    numbers = (salt % 2**32, salt >> 32, round(rate * 2**32), 1 / (1 - rate))
    args = (out, outer[0], x, outer[1], outer[2], noise, rows, cols, lead, first, *numbers)

    def launches(setting: tuple[int, int]) -> list[Launch]:
        tile, warps = setting
        across = min(tile, power_of_two(cols))
        down = min(tile // across, power_of_two(rows))
        steps = dict(zip(("t_out", "t_x", "t_index"), inner, strict=True))
        blocks = {"FOURS": fours, "ADDS": accumulate, "ROWS": down, "COLS": across}
        grid = (-(-rows // down) * -(-cols // across),)
        flops = walk.extent * (_ROUNDS // 4 if fours else _ROUNDS)
        return [Launch(_dropout, grid, args, steps | blocks, warps, flops=flops)]

    return LaunchPlan(((1024, 4), (2048, 4), (4096, 8)), launches)


@triton.jit
def _random_words(index, salt_low, salt_high, key):
    """Four random words of each counter index (Salmon et al. 2011)."""
    zero = (index * 0).to(tl.uint32)
    low, high = index.to(tl.uint32), (index >> 32).to(tl.uint32)
    return tl.philox(key, low, high, zero + salt_low, zero + salt_high)


@triton.jit
def _dropout(out, s_out, x, s_x, s_index, noise, rows, cols, lead, first, salt_low, salt_high, limit, scale,
             t_out: tl.constexpr, t_x: tl.constexpr, t_index: tl.constexpr, FOURS: tl.constexpr, ADDS: tl.constexpr,
             ROWS: tl.constexpr, COLS: tl.constexpr):  # fmt: skip
    blocks = tl.cdiv(cols, COLS)
    row = (tl.program_id(0) // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    start = (tl.program_id(0) % blocks).to(tl.int64) * COLS
    col = (start + tl.arange(0, COLS))[None, :]
    here = (row < rows)[:, None] & (col < cols)
    key = tl.load(noise).to(tl.uint64)
    begin = (first + offsets(row, lead, s_index))[:, None]
    low = tl.full((1, 1), salt_low, tl.int64).to(tl.uint32)
    high = tl.full((1, 1), salt_high, tl.int64).to(tl.uint32)
    if FOURS:
        four = (start // 4 + tl.arange(0, COLS // 4))[None, :]
        a, b, c, d = _random_words(begin // 4 + four, low, high, key)
        word = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (ROWS, COLS))
    else:
        index = begin + col * t_index
        a, b, c, d = _random_words(index // 4, low, high, key)
        which = index % 4
        word = tl.where(which == 0, a, tl.where(which == 1, b, tl.where(which == 2, c, d)))
    v = tl.load(x + offsets(row, lead, s_x)[:, None] + col * t_x, mask=here, other=0.0).to(tl.float32)
    v = v * tl.where(word.to(tl.int64) < limit, 0.0, scale)
    at = out + offsets(row, lead, s_out)[:, None] + col * t_out
    if ADDS:
        v += tl.load(at, mask=here, other=0.0).to(tl.float32)
    tl.store(at, v.to(out.dtype.element_ty), mask=here)

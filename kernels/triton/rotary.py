"""Rotary position embeddings: each pair of a head's features turned by an angle that grows with the position.

It knows no attention. Angles are counted in whole turns and in float64, as those of late positions are many turns, of
which float32 leaves too little; sine and cosine then are polynomials on an eighth of a turn (Cephes, Moshier 1989).
"""

# mypy: disable-error-code="no-untyped-def"

from math import log2
from typing import Any

import triton
from triton import language as tl

from castile.kernels.triton.functions import offsets
from castile.kernels.triton.launch import Launch, LaunchPlan, are_floats, planned
from castile.kernels.triton.views import View, loop_nest, needs_64_bits, power_of_two, split_dims, view

# Pairs of a head that a program holds at most, and operations on a pair: the angle, both polynomials, the turn.
_MOST_PAIRS = 4096
_OPERATIONS = 40


@planned
def rotary(
    out: Any, x: Any, *, heads: int, base: float, offset: int, interleaved: bool, inverse: bool
) -> LaunchPlan | None:
    """See the definition."""
    pairs = x.shape[-1] // heads // 2
    if not are_floats(out, x) or pairs > _MOST_PAIRS:
        return None
    if x.size == 0:
        return LaunchPlan((None,), lambda _: [])
    views = [split_dims(view(one), (*x.shape[:-1], heads, 2 * pairs)) for one in (out, x)]
    walk = loop_nest([View(one.array, one.shape[:-3], one.steps[:-3]) for one in views])
    own = [part for one, lead in zip(views, walk.steps, strict=True) for part in (one.array, one.steps[-3:], lead)]
    num = x.shape[-2]
    constants = {
        "SLOWER": -log2(base) / pairs,
        "SIGN": -1.0 if inverse else 1.0,
        "INTERLEAVED": interleaved,
        "WIDE": needs_64_bits(views),
        "PAIRS": pairs,
        "BLOCK": power_of_two(pairs),
    }

    def launches(setting: tuple[int, int, int]) -> list[Launch]:
        tile, most, warps = setting
        rows = min(max(1, tile // power_of_two(pairs)), power_of_two(num))
        together = min(most, heads)
        grid = (-(-num // rows) * -(-heads // together) * walk.extent,)
        args = (*own, num, heads, walk.sizes, offset)
        blocks = {"ROWS": rows, "HEADS": together}
        return [Launch(_rotary, grid, args, constants | blocks, warps, flops=x.size // 2 * _OPERATIONS)]

    # Sines serve all the heads of a program; with too many of those a chip is not filled.
    return LaunchPlan(((1024, 4, 4), (1024, 8, 4), (512, 4, 4), (2048, 2, 8), (1024, 1, 4)), launches)


@triton.jit
def _sine_and_cosine(turns):
    """Of an angle in turns, in float64, as float32."""
    quarter = tl.floor(turns * 4.0 + 0.5)
    x = ((turns * 4.0 - quarter) * 1.5707963267948966).to(tl.float32)
    z = x * x
    sine = ((z * -1.9515295891e-4 + 8.3321608736e-3) * z - 1.6666654611e-1) * z * x + x
    cosine = ((z * 2.443315711809948e-5 - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z - 0.5 * z + 1.0
    which = (quarter - tl.floor(quarter * 0.25) * 4.0).to(tl.int32)
    odd = which % 2 == 1
    return (
        tl.where(which >= 2, -1.0, 1.0) * tl.where(odd, cosine, sine),
        tl.where((which == 1) | (which == 2), -1.0, 1.0) * tl.where(odd, sine, cosine),
    )


@triton.jit
def _rotary(out, o_steps, o_lead, x, x_steps, x_lead, num, heads, lead, offset,
            SLOWER: tl.constexpr, SIGN: tl.constexpr, INTERLEAVED: tl.constexpr, WIDE: tl.constexpr,
            PAIRS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr):  # fmt: skip
    blocks, groups = tl.cdiv(num, ROWS), tl.cdiv(heads, HEADS)
    row = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(0) // blocks % groups * HEADS
    where = tl.program_id(0) // blocks // groups
    pair = tl.arange(0, BLOCK)[None, :]
    speed = tl.exp2(pair.to(tl.float64) * SLOWER) * 0.15915494309189535
    s, c = _sine_and_cosine((row + offset)[:, None].to(tl.float64) * speed)
    s *= SIGN
    if WIDE:
        row, first, where = row.to(tl.int64), first.to(tl.int64), where.to(tl.int64)
    # Neighbours are read and written together and parted in registers.
    col = tl.arange(0, 2 * BLOCK)[None, :] if INTERLEAVED else pair
    here = (row < num)[:, None] & (col < (2 * PAIRS if INTERLEAVED else PAIRS))
    out += offsets(where, lead, o_lead) + row[:, None] * o_steps[0] + col * o_steps[2]
    x += offsets(where, lead, x_lead) + row[:, None] * x_steps[0] + col * x_steps[2]
    for head in range(first, tl.minimum(first + HEADS, heads)):
        at, to = x + head * x_steps[1], out + head * o_steps[1]
        if INTERLEAVED:
            both = tl.load(at, mask=here, other=0.0).to(tl.float32)
            a, b = tl.split(tl.reshape(both, (ROWS, BLOCK, 2)))
            both = tl.reshape(tl.join(a * c - b * s, b * c + a * s), (ROWS, 2 * BLOCK))
            tl.store(to, both.to(out.dtype.element_ty), mask=here)
        else:
            a = tl.load(at, mask=here, other=0.0).to(tl.float32)
            b = tl.load(at + PAIRS * x_steps[2], mask=here, other=0.0).to(tl.float32)
            tl.store(to, (a * c - b * s).to(out.dtype.element_ty), mask=here)
            tl.store(to + PAIRS * o_steps[2], (b * c + a * s).to(out.dtype.element_ty), mask=here)

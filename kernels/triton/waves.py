"""How long tiles of a product take together, so that the likeliest cut is tried first and sums are divided well.

Programs run in waves, as many at a time as processors hold; the last wave takes as long as a full one. What a tile
takes was fitted to two products of GPT-2's shapes in bfloat16 on an H200, in seven tiles each; two others came out
within 18 %, but not one of 64 summed elements, which writing bounds. It knows no kernel, and other chips differ: tuning
measures.
"""

from typing import NamedTuple

# Of an H200.
_PROCESSORS = 132
# What adding up the parts of a sum takes: a launch in microseconds, and bytes a microsecond.
_LAUNCH, _BYTES = 3.0, 3.5e6
# Numbers that wait for being added up at most, 32 MB in float32, and steps of a part at least.
_WAITING = 2**23
_STEPS = 8
_MOST_PARTS = 16


class Cut(NamedTuple):
    """Rows, columns and summed elements of a tile's step, its warps, and "half" or how float32 is multiplied."""

    m: int
    n: int
    k: int
    warps: int
    precision: str


class Pace(NamedTuple):
    """Programs that a processor holds at the same time, and microseconds: of these to begin and end, and of a step."""

    at_once: int
    ends: float
    step: float


_PACES = {
    Cut(128, 256, 64, 8, "half"): Pace(1, 7.1, 0.613),
    Cut(256, 128, 64, 8, "half"): Pace(1, 4.6, 0.71),
    Cut(64, 256, 64, 8, "half"): Pace(1, 4.5, 0.45),
    Cut(128, 128, 64, 8, "half"): Pace(2, 1.7, 0.89),
    Cut(128, 128, 64, 4, "half"): Pace(2, 1.0, 0.95),
    Cut(128, 64, 64, 4, "half"): Pace(2, 1.7, 0.52),
    Cut(64, 64, 64, 4, "half"): Pace(3, 0.6, 0.53),
}
# Of a step of 128 x 128 x 64 where two are held: "ieee" from whole products, "tf32x3" as many times bfloat16's as the
# chip's rates say.
_STEP = {"half": 0.89, "ieee": 14.6, "tf32x3": 5.3}


def microseconds(cut: Cut, m: int, n: int, k: int, l: int, parts: int = 1) -> float:
    """What l products [m,k] x [k,n] would take in these tiles, sums in `parts` that are added up at the end."""
    pace = _PACES.get(cut)
    if pace is None:
        share = cut.m * cut.n * cut.k / (128 * 128 * 64)
        pace = Pace(2, 1.7, max(0.3, _STEP[cut.precision] * share))
    steps = -(-k // (cut.k * parts))
    each = -(-m // cut.m) * -(-n // cut.n) * l * parts / _PROCESSORS
    # Where several are held, those of a last wave have the processor to themselves.
    waves = -(-each // 1) if pace.at_once == 1 else (each - each // -1) / 2 / pace.at_once
    spent = pace.ends * max(1.0, waves) + waves * steps * pace.step
    return spent if parts == 1 else spent + _LAUNCH + (4 * parts + 2) * m * n * l / _BYTES


def best_parts(cut: Cut, m: int, n: int, k: int, l: int) -> int:
    """Into how many sums the k summed elements are best divided."""
    steps = -(-k // cut.k)
    few = (parts for parts in range(1, _MOST_PARTS + 1) if steps // parts >= _STEPS and parts * m * n * l <= _WAITING)
    return min(few, key=lambda parts: microseconds(cut, m, n, k, l, parts), default=1)

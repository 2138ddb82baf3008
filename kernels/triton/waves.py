"""A model of how long a matrix product takes in tiles, to order settings and to choose split-K.

Programs run in waves, as many at once as the multiprocessors hold; the last wave takes as long as a full one. The times
of tiles were fitted to two products of GPT-2's shapes in bfloat16 on an H200, in seven tiles each. Two other products
came out within 18 %, but not one over 64 summed elements, which is bound by writing. It knows no kernel. Other chips
differ: tuning measures.
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


class TileShape(NamedTuple):
    """Rows, columns and summed elements of a tile's step, its warps, and "half" or the precision of float32 products.
    """

    m: int
    n: int
    k: int
    warps: int
    precision: str


class TileTime(NamedTuple):
    """Programs that a multiprocessor holds at once, and microseconds: to begin and end one, and for a step."""

    at_once: int
    ends: float
    step: float


_TILE_TIMES = {
    TileShape(128, 256, 64, 8, "half"): TileTime(1, 7.1, 0.613),
    TileShape(256, 128, 64, 8, "half"): TileTime(1, 4.6, 0.71),
    TileShape(64, 256, 64, 8, "half"): TileTime(1, 4.5, 0.45),
    TileShape(128, 128, 64, 8, "half"): TileTime(2, 1.7, 0.89),
    TileShape(128, 128, 64, 4, "half"): TileTime(2, 1.0, 0.95),
    TileShape(128, 64, 64, 4, "half"): TileTime(2, 1.7, 0.52),
    TileShape(64, 64, 64, 4, "half"): TileTime(3, 0.6, 0.53),
}
# Of a step of 128 x 128 x 64 where two are held: "ieee" from whole products, "tf32x3" as many times bfloat16's as the
# chip's rates say.
_STEP = {"half": 0.89, "ieee": 14.6, "tf32x3": 5.3}


def microseconds(cut: TileShape, m: int, n: int, k: int, l: int, parts: int = 1) -> float:
    """What l products [m,k] x [k,n] take in tiles of this shape, with the sum split into `parts` that are added at the
    end.
    """
    pace = _TILE_TIMES.get(cut)
    if pace is None:
        share = cut.m * cut.n * cut.k / (128 * 128 * 64)
        pace = TileTime(2, 1.7, max(0.3, _STEP[cut.precision] * share))
    steps = -(-k // (cut.k * parts))
    each = -(-m // cut.m) * -(-n // cut.n) * l * parts / _PROCESSORS
    # Where several are held, those of a last wave have the processor to themselves.
    waves = -(-each // 1) if pace.at_once == 1 else (each - each // -1) / 2 / pace.at_once
    spent = pace.ends * max(1.0, waves) + waves * steps * pace.step
    return spent if parts == 1 else spent + _LAUNCH + (4 * parts + 2) * m * n * l / _BYTES


def best_split(cut: TileShape, m: int, n: int, k: int, l: int) -> int:
    """The number of parts into which the sum over k is best split."""
    steps = -(-k // cut.k)
    few = (parts for parts in range(1, _MOST_PARTS + 1) if steps // parts >= _STEPS and parts * m * n * l <= _WAITING)
    return min(few, key=lambda parts: microseconds(cut, m, n, k, l, parts), default=1)

"""Regions and boxes: named arrays and the rectangles of them that tasks touch.

It does not know who computes what, nor where an array lies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from operator import add, ge, le, lt, sub
from typing import NamedTuple

import numpy as np

# So many boxes are compared one by one; more of them together.
FEW = 8
# So many pairs of boxes are compared at once.
MOST_PAIRS = 2**20


class Box(NamedTuple):
    """The half-open rectangle lo <= index < hi, one entry a dim; a scalar's box has no dims and volume 1."""

    lo: tuple[int, ...]
    hi: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, one a dim."""
        return tuple(map(sub, self.hi, self.lo))

    @property
    def volume(self) -> int:
        """How many elements it holds."""
        return prod(map(sub, self.hi, self.lo))

    def along(self, dim: int, begin: int, end: int) -> Box:
        """The same but for where it begins and ends along one dim."""
        return Box((*self.lo[:dim], begin, *self.lo[dim + 1 :]), (*self.hi[:dim], end, *self.hi[dim + 1 :]))

    def __str__(self) -> str:
        return "[" + ", ".join(f"{l}:{h}" for l, h in zip(self.lo, self.hi, strict=True)) + "]"


@dataclass(frozen=True)
class Region:
    """A named array of `shape` and `dtype` (a numpy name); where its pieces lie is the plan's affair."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if any(n < 0 for n in self.shape):
            raise ValueError(f"region {self.name!r}: negative extent in shape {self.shape}")

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def whole(shape: Sequence[int]) -> Box:
    """The box of a whole array of that shape."""
    return Box((0,) * len(shape), tuple(shape))


def intersect(a: Box, b: Box) -> Box | None:
    """The common part, or None where they do not overlap."""
    lo = tuple(map(max, a.lo, b.lo))
    hi = tuple(map(min, a.hi, b.hi))
    return Box(lo, hi) if all(map(lt, lo, hi)) else None


def overlap(a: Box, b: Box) -> bool:
    """Whether they have an element in common."""
    for a_lo, b_lo, a_hi, b_hi in zip(a.lo, b.lo, a.hi, b.hi):
        if a_lo >= b_hi or b_lo >= a_hi or a_lo >= a_hi or b_lo >= b_hi:
            return False
    return True


def all_overlap(some: Collection[Box], others: Collection[Box]) -> bool:
    """Whether each of some boxes has an element in common with each of others."""
    lo, hi = zip(*[(b.lo, b.hi) for b in some], strict=True)
    los, his = zip(*[(b.lo, b.hi) for b in others], strict=True)
    return all(
        max(a) < min(d) and max(c) < min(b) and all(map(lt, a, b)) and all(map(lt, c, d))
        for a, b, c, d in zip(zip(*lo), zip(*hi), zip(*los), zip(*his))
    )


def contains(outer: Box, inner: Box) -> bool:
    """True where every element of `inner` lies in `outer`."""
    return all(map(le, outer.lo, inner.lo)) and all(map(ge, outer.hi, inner.hi))


def bounding(boxes: Collection[Box]) -> Box:
    """The smallest box that contains them all."""
    if len(boxes) == 1:
        return next(iter(boxes))
    los, his = zip(*boxes, strict=True)
    return Box(tuple(map(min, zip(*los, strict=True))), tuple(map(max, zip(*his, strict=True))))


class Overlaps:
    """Which of some boxes overlap a box: found once for each box that is asked for."""

    def __init__(self, boxes: Iterable[Box]) -> None:
        numbers: dict[Box, list[int]] = {}
        for number, box in enumerate(boxes):
            numbers.setdefault(box, []).append(number)
        self._numbers = {box: tuple(each) for box, each in numbers.items()}
        self._found: dict[Box, tuple[int, ...]] = {}

    def of(self, box: Box) -> tuple[int, ...]:
        """The numbers of those boxes, ascending."""
        found = self._found.get(box)
        if found is None:
            found = self._found[box] = self._find(box)
        return found

    def _find(self, box: Box) -> tuple[int, ...]:
        if box in self._numbers and self._apart and box.volume:
            return self._numbers[box]
        hits = self._hits(box)
        if len(hits) == 1:
            return self._numbers[hits[0]]
        return tuple(sorted(number for hit in hits for number in self._numbers[hit]))

    def _hits(self, box: Box) -> list[Box]:
        distinct = list(self._numbers)
        if len(distinct) <= FEW:
            return [other for other in distinct if overlap(other, box)]
        return [distinct[n] for n in np.flatnonzero(_overlapping(*self._corners, box)).tolist()]

    @cached_property
    def _apart(self) -> bool:
        return disjoint(list(self._numbers))

    @cached_property
    def _corners(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array([b.lo for b in self._numbers]), np.array([b.hi for b in self._numbers])


def disjoint(boxes: Sequence[Box]) -> bool:
    """True where no two of the boxes have an element in common."""
    if len(boxes) <= FEW:
        return not any(overlap(a, b) for n, a in enumerate(boxes) for b in boxes[:n])
    if len(set(boxes)) == len(boxes) and _is_grid(boxes):
        return True
    if not boxes[0].lo:
        return False
    lo, hi = np.array([b.lo for b in boxes]), np.array([b.hi for b in boxes])
    # only what overlaps along one dim can overlap; the dim along which fewest do is the best to look at first
    orders = [np.argsort(lo[:, dim]) for dim in range(lo.shape[1])]
    later = [_later(lo[order, dim], hi[order, dim]) for dim, order in enumerate(orders)]
    best = min(range(len(orders)), key=lambda dim: later[dim].sum())
    return _none_meet(lo[orders[best]], hi[orders[best]], later[best])


def _later(lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    """int[n]: how many runs that follow each of n begin before it ends; lo ascending."""
    return np.maximum(np.searchsorted(lo, hi) - np.arange(1, len(lo) + 1), 0)


def _none_meet(lo: np.ndarray, hi: np.ndarray, later: np.ndarray) -> bool:
    """Whether no box overlaps one of so many that follow it."""
    ends = np.cumsum(later)
    for first in range(0, int(ends[-1]), MOST_PAIRS):
        pairs = np.arange(first, min(first + MOST_PAIRS, int(ends[-1])))
        a = np.searchsorted(ends, pairs, side="right")
        b = pairs - (ends - later)[a] + a + 1
        if (np.maximum(lo[a], lo[b]) < np.minimum(hi[a], hi[b])).all(axis=1).any():
            return False
    return True


def _is_grid(boxes: Sequence[Box]) -> bool:
    """Whether the boxes' runs along each dim are equal or apart, so that boxes that differ are disjoint."""
    los, his = zip(*(b.lo for b in boxes), strict=True), zip(*(b.hi for b in boxes), strict=True)
    return all(
        last <= first
        for lo, hi in zip(los, his, strict=True)
        for (_, last), (first, _) in pairwise(sorted(set(zip(lo, hi, strict=True))))
    )


def _overlapping(lo: np.ndarray, hi: np.ndarray, box: Box) -> np.ndarray:
    """bool[n]: which of n boxes overlap one."""
    return (np.maximum(lo, box.lo) < np.minimum(hi, box.hi)).all(axis=1)


def minus(a: Box, b: Box) -> list[Box]:
    """`a` without `b`, as disjoint boxes: at most two a dim."""
    common = intersect(a, b)
    if common is None:
        return [a]
    pieces, lo, hi = [], list(a.lo), list(a.hi)
    for dim in range(len(lo)):
        if lo[dim] < common.lo[dim]:
            pieces.append(Box(tuple(lo), (*hi[:dim], common.lo[dim], *hi[dim + 1 :])))
        if common.hi[dim] < hi[dim]:
            pieces.append(Box((*lo[:dim], common.hi[dim], *lo[dim + 1 :]), tuple(hi)))
        lo[dim], hi[dim] = common.lo[dim], common.hi[dim]
    return pieces


def uncovered(frame: Box, boxes: Iterable[Box]) -> list[Box]:
    """What of `frame` no box covers, as disjoint boxes."""
    rest = [frame] if frame.volume else []
    for box in boxes:
        rest = [piece for part in rest for piece in minus(part, box)]
    return rest


def relative(box: Box, frame: Box) -> Box:
    """`box` in the coordinates of an array that is dense over `frame`."""
    assert contains(frame, box), f"{box} is not inside {frame}"
    return Box(
        tuple(a - b for a, b in zip(box.lo, frame.lo, strict=True)),
        tuple(a - b for a, b in zip(box.hi, frame.lo, strict=True)),
    )


def moved(box: Box, by: Sequence[int]) -> Box:
    """`box` so many elements further along each dim."""
    return Box(tuple(map(add, box.lo, by)), tuple(map(add, box.hi, by)))


def slices(box: Box) -> tuple[slice, ...]:
    """The box as numpy indices."""
    return tuple(slice(l, h) for l, h in zip(box.lo, box.hi, strict=True))


def contiguous(box: Box, frame: Box) -> bool:
    """True where `box` is one unbroken run of a dense row-major array over `frame`."""
    return unbroken(box.shape, frame.shape)


def unbroken(inner: tuple[int, ...], outer: tuple[int, ...]) -> bool:
    """The same of what has one shape, inside what has the other."""
    for dim, extent in enumerate(inner):
        if extent > 1:
            return inner[dim + 1 :] == outer[dim + 1 :]
    return True


def blocks(extent: int, parts: int) -> list[tuple[int, int]]:
    """`extent` elements in `parts` runs whose lengths differ by at most one, of which the first is as long as any.

    In so many times as many runs, each of these is a whole number of them: finer cuts go along with coarser ones.
    """
    bounds = [-(-part * extent // parts) for part in range(parts + 1)]
    return list(zip(bounds[:-1], bounds[1:], strict=True))

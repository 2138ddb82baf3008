"""Regions and boxes: named arrays and the rectangles of them that tasks touch.

It does not know who computes what, nor where an array lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np


class Box(NamedTuple):
    """The half-open rectangle lo <= index < hi, one entry a dim; a scalar's box has no dims and volume 1."""

    lo: tuple[int, ...]
    hi: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(h - l for l, h in zip(self.lo, self.hi, strict=True))

    @property
    def volume(self) -> int:
        return prod(self.shape)

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
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def whole(shape: Sequence[int]) -> Box:
    """The box of a whole array of that shape."""
    return Box((0,) * len(shape), tuple(shape))


def intersect(a: Box, b: Box) -> Box | None:
    """The common part, or None where they do not overlap."""
    lo = tuple(map(max, a.lo, b.lo))
    hi = tuple(map(min, a.hi, b.hi))
    return Box(lo, hi) if all(l < h for l, h in zip(lo, hi, strict=True)) else None


def contains(outer: Box, inner: Box) -> bool:
    """True where every element of `inner` lies in `outer`."""
    return all(a <= b for a, b in zip(outer.lo, inner.lo, strict=True)) and all(
        a >= b for a, b in zip(outer.hi, inner.hi, strict=True)
    )


def bounding(boxes: Iterable[Box]) -> Box:
    """The smallest box that contains them all."""
    los, his = zip(*boxes, strict=True)
    return Box(tuple(map(min, zip(*los, strict=True))), tuple(map(max, zip(*his, strict=True))))


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


def slices(box: Box) -> tuple[slice, ...]:
    """The box as numpy indices."""
    return tuple(slice(l, h) for l, h in zip(box.lo, box.hi, strict=True))


def contiguous(box: Box, frame: Box) -> bool:
    """True where `box` is one unbroken run of a dense row-major array over `frame`."""
    inner, outer = box.shape, frame.shape
    dims = [d for d, n in enumerate(inner) if n > 1]
    return not dims or inner[dims[0] + 1 :] == outer[dims[0] + 1 :]


def blocks(extent: int, parts: int) -> list[tuple[int, int]]:
    """`extent` elements in `parts` runs whose lengths differ by at most one, the longer ones first."""
    size, longer = divmod(extent, parts)
    bounds = [0]
    for part in range(parts):
        bounds.append(bounds[-1] + size + (part < longer))
    return list(zip(bounds[:-1], bounds[1:], strict=True))

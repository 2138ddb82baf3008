"""Runs: pieces of an array packed end to end to be sent as one array, and unpacked where that has arrived.

It does not know which form sends them. Processors are slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from math import prod

import msgspec

from castile.runtime.region import Box, unbroken, whole
from castile.runtime.task import Kind, View
from castile.runtime.transfer import Pattern, Recipe, Shape, Transfer, cost_of


class Run(msgspec.Struct, frozen=True, eq=False):
    """Pieces packed end to end: their boxes, their shapes, and the box of the packed array."""

    pieces: tuple[Box, ...]
    shapes: tuple[Shape, ...]
    box: Box

    @property
    def to_pack(self) -> Iterator[tuple[View, View]]:
        """(view read, view written) of each piece: from the array to the packed one, in the piece's shape."""
        ends = list(accumulate(map(prod, self.shapes), initial=0))
        for piece, shape, begin, end in zip(self.pieces, self.shapes, ends, ends[1:]):
            yield View(1, piece), View(0, Box((begin,), (end,)), shape)

    @property
    def to_unpack(self) -> Iterator[tuple[View, View]]:
        """(view read, view written) of each piece: from the packed array to the array."""
        return ((there._replace(buffer=1), piece._replace(buffer=0)) for piece, there in self.to_pack)


def of(pieces: Sequence[list[Box]], frames: Sequence[Box]) -> list[Run | None]:
    """The run of each list of pieces, None where the pieces end to end are the dense array over the frame.

    Lists that are one object get one run.
    """
    known: dict[tuple[int, Box], Run | None] = {}
    found = []
    for each, frame in zip(pieces, frames, strict=True):
        key = (id(each), frame)
        if key not in known:
            known[key] = None if _end_to_end(each, frame) else _run(each)
        found.append(known[key])
    return found


def _end_to_end(pieces: list[Box], frame: Box) -> bool:
    """Whether the pieces, laid end to end in this order, are the dense array over `frame`."""
    offset, outer = 0, frame.shape
    for piece in pieces:
        start, inner = 0, piece.shape
        for lo, first, extent in zip(piece.lo, frame.lo, outer, strict=True):
            start = start * extent + lo - first
        if start != offset or not unbroken(inner, outer):
            return False
        offset += prod(inner)
    return offset == prod(outer)


def _run(pieces: Sequence[Box]) -> Run:
    """The run of some pieces."""
    shapes = tuple([piece.shape for piece in pieces])
    return Run(tuple(pieces), shapes, whole((sum(map(prod, shapes)),)))


def landing(t: Transfer, proc: int, run: Run) -> View:
    """A staging piece for a packed array."""
    return View(t.add("staging", run.box, proc), run.box)


def laid_out(t: Transfer, proc: int, source: View, run: Run) -> View:
    """Emit the packing of an array's pieces into a staging piece, which is returned."""
    key = (source.box, run)
    if key not in t.recipes:
        t.recipes[key] = _moved(t, "pack", [(prod(shape),) for shape in run.shapes], lambda: run.to_pack)
    target, recipe = landing(t, proc, run), t.recipes[key]
    t.put(Pattern(Kind.PACK, "pack", (proc,), recipe.key, (source.buffer,), (target.buffer,), recipe))
    return target


def unpack(t: Transfer, proc: int, run: Run, staging: View, target: View) -> None:
    """Emit the unpacking of a packed array into the target, which its pieces cover."""
    key = (run, target.box)
    if key not in t.recipes:
        assert run.box.volume == target.box.volume, f"{run.box.volume} elements are not all of {target.box}"
        t.recipes[key] = _moved(t, "unpack", run.shapes, lambda: run.to_unpack)
    recipe = t.recipes[key]
    t.put(Pattern(Kind.FOLD, "unpack", (proc,), recipe.key, (staging.buffer,), (target.buffer,), recipe))


def _moved(t: Transfer, name: str, shapes: Sequence[Shape], pairs: Callable[[], Iterable[tuple[View, View]]]) -> Recipe:
    """The recipe of copies of arrays of these shapes, of which no two overlap."""
    cost = cost_of(t, name, shapes, (False,) * len(shapes))
    return Recipe(cost, None, lambda: [(read, written, False) for read, written in pairs()])

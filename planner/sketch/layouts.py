"""Where the parts of a port lie in its array: for each dim the axis that cuts it, and its blocks by degree.

Operators may read more than their axis line says (halos, offsets): such blocks are asked for, each axis by itself. It
does not know processors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from castile.planner.graph import Node
from castile.planner.op import Op, Part
from castile.planner.sketch.arrays import Layouts
from castile.planner.sketch.many import Pairs, all_blocks, asked
from castile.planner.sketch.prices import MOST_DIMS
from castile.planner.sketch.spaces import SpaceTable
from castile.runtime.region import Box

# By dim the blocks of an axis, one degree after the other.
Seen = dict[int, Pairs]


class Dim(NamedTuple):
    """The axis that cuts a dim, -1 for none, and where its blocks begin and end: uncut, then degree after degree."""

    axis: int
    lo: np.ndarray
    hi: np.ndarray


class LayoutTable:
    """The layouts asked for so far, numbered.

    kind   equal for nodes whose parts lie alike
    """

    def __init__(self, table: SpaceTable, kind: Callable[[Node], int]) -> None:
        self._table, self._kind = table, kind
        self._numbers: dict[object, int] = {}
        self._seen: dict[object, Seen] = {}
        self._rows: list[tuple[int, list[Dim], list[bool]]] = []

    def number(self, node: Node, space: int, is_operand: bool, index: int, begin: tuple[int, ...] = ()) -> int:
        """The layout of a node's operand or result, in an array where it begins at `begin`, () where they are one."""
        asker = (self._kind(node), space, is_operand, index, begin)
        if asker not in self._numbers:
            a = node.alignment
            dims = (a.operands if is_operand else a.results)[index].dims
            # What follows the law is told by its axes; other operators may read otherwise with other settings.
            key = (dims, tuple(a.extents.items()), space, begin) if _is_lawful(node, is_operand) else asker
            if key not in self._numbers:
                self._numbers[key] = self._new(node, space, is_operand, index, begin)
            self._numbers[asker] = self._numbers[key]
        return self._numbers[asker]

    def _new(self, node: Node, space: int, is_operand: bool, index: int, begin: tuple[int, ...]) -> int:
        rows, borne = self._made(node, space, is_operand, index)
        if begin:
            rows = [Dim(axis, lo + first, hi + first) for (axis, lo, hi), first in zip(rows, begin, strict=True)]
        same = (space, tuple((dim.axis, dim.lo.tobytes(), dim.hi.tobytes()) for dim in rows), tuple(borne))
        if same not in self._numbers:
            self._numbers[same] = len(self._rows)
            self._rows.append((space, rows, borne))
        return self._numbers[same]

    def bears_all(self, number: int) -> bool:
        """Whether every axis that may be cut cuts the array."""
        return all(self._rows[number][2])

    def arrays(self, first: np.ndarray) -> tuple[Layouts, int]:
        """All of it, flat, and how many contents there may be; first: where the Configs of each space begin."""
        degrees, width = self._table.degrees, self._table.width
        ranks = [[np.searchsorted(degrees, (1, *of)) for of in axes] for axes in self._table.cuts]
        starts = [[np.concatenate([[0, 1], 1 + np.cumsum(of)[:-1]]) for of in axes] for axes in self._table.cuts]
        count = len(self._rows)
        base, dims = np.zeros(count, np.int64), np.zeros(count, np.int64)
        axis, bears = np.full((count, MOST_DIMS), -1), np.zeros((count, width), np.bool_)
        table = np.zeros((count, MOST_DIMS, len(degrees)), np.int64)
        lo: list[np.ndarray] = []
        hi: list[np.ndarray] = []
        offset, begin = 0, 0
        for n, (space, rows, borne) in enumerate(self._rows):
            base[n], dims[n], bears[n, : len(borne)] = offset - first[space], len(rows), borne
            offset += int(first[space + 1] - first[space])
            for d, dim in enumerate(rows):
                axis[n, d] = dim.axis
                if dim.axis < 0:
                    table[n, d, 0] = begin
                else:
                    table[n, d, ranks[space][dim.axis]] = begin + starts[space][dim.axis]
                lo.append(dim.lo)
                hi.append(dim.hi)
                begin += len(dim.lo)
        return Layouts(base, dims, axis, table, bears, _joined(lo), _joined(hi)), offset

    def seen(self, node: Node, is_operand: bool, index: int, axis: str, degrees: tuple[int, ...], whole: Box) -> Seen:
        """What the blocks of an axis see of an operand, or make of a result, by the dims that it cuts; whole: all."""
        key = (self._kind(node), is_operand, index, axis, degrees)
        if key not in self._seen:
            self._seen[key] = _seen(node, is_operand, index, axis, degrees, whole)
        return self._seen[key]

    def _made(self, node: Node, space: int, is_operand: bool, index: int) -> tuple[list[Dim], list[bool]]:
        axes = self._table.axes[space]
        whole = _box(node.whole(), is_operand, index)
        assert len(whole.shape) <= MOST_DIMS, f"{node.name}: arrays of {len(whole.shape)} dims are too many"
        rows = [Dim(-1, np.array([lo]), np.array([hi])) for lo, hi in zip(whole.lo, whole.hi, strict=True)]
        borne = [False] * len(axes)
        for number, (axis, degrees) in enumerate(zip(axes, self._table.cuts[space], strict=True)):
            for d, (lo, hi) in self.seen(node, is_operand, index, axis, degrees, whole).items():
                borne[number] = True
                rows[d] = Dim(number, np.concatenate([rows[d].lo[:1], lo]), np.concatenate([rows[d].hi[:1], hi]))
        return rows, borne


def _seen(node: Node, is_operand: bool, index: int, axis: str, degrees: tuple[int, ...], whole: Box) -> Seen:
    blocks = all_blocks(node.alignment.extents[axis], degrees)
    if _is_lawful(node, is_operand):
        return _by_law(node, is_operand, index, axis, blocks)
    part = _where(node, axis, blocks)
    box = asked(lambda: part.reads(index)) or _one_by_one(node, index, axis, degrees)
    found: Seen = {}
    for d, (lo, hi, first, last) in enumerate(zip(*box, *whole, strict=True)):
        # Windows may see all of a dim where it is cut in few, and less where it is cut in many.
        if np.count_nonzero(lo != first) or np.count_nonzero(hi != last):
            found[d] = np.broadcast_to(lo, len(blocks[0])), np.broadcast_to(hi, len(blocks[0]))
    return found


def _by_law(node: Node, is_operand: bool, index: int, axis: str, blocks: Pairs) -> Seen:
    a, (lo, hi) = node.alignment, blocks
    dims = (a.operands if is_operand else a.results)[index].dims
    inner = {d: prod(a.extents[x] for x in dim[1:]) for d, dim in enumerate(dims) if dim and dim[0] == axis}
    return {d: (lo * n, hi * n) for d, n in inner.items()}


def _is_lawful(node: Node, is_operand: bool) -> bool:
    return not is_operand or type(node.op).reads is Op.reads


def _one_by_one(node: Node, index: int, axis: str, degrees: tuple[int, ...]) -> Box:
    """The boxes of an operand that blocks of an axis read, dim by dim, where each is asked for by itself."""
    a, ranges = node.alignment, node.whole().ranges
    operand, extent = a.operands[index], a.extents[axis]

    def law(some: tuple[int, ...]) -> Box:
        return _where(node, axis, all_blocks(extent, some)).shard(operand)

    def each(some: tuple[int, ...]) -> Box:
        lo, hi = all_blocks(extent, some)
        every = list(zip(lo.tolist(), hi.tolist(), strict=True))
        parts = {block: Part(node.op, a, {**ranges, axis: block}) for block in every}
        known = {block: node.op.reads(index, part) for block, part in parts.items()}
        los, his = (np.array([box[end] for box in map(known.__getitem__, every)]).T for end in (0, 1))
        return Box(tuple(los), tuple(his))

    # Most axes of operators that read otherwise are as the line says: the coarsest and the finest cut tell.
    is_lawful = all(_are_same(each(few), law(few)) for few in (degrees[:1], degrees[-1:]))
    return law(degrees) if is_lawful else each(degrees)


def _are_same(one: Box, other: Box) -> bool:
    return all(np.all(a == b) for a, b in zip((*one.lo, *one.hi), (*other.lo, *other.hi), strict=True))


def _where(node: Node, axis: str, blocks: Pairs) -> Part:
    """The parts that have only this of an axis."""
    return Part(node.op, node.alignment, {**node.whole().ranges, axis: blocks})  # type: ignore[dict-item]


def _box(part: Part, is_operand: bool, index: int) -> Box:
    return part.reads(index) if is_operand else part.writes(index)


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *arrays])

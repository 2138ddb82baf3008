"""Where the parts of a port lie in its array: for each dim the axis that cuts it, and its blocks by degree.

Operators may read more than their axis line says (halos, offsets): such blocks are asked for one by one, each axis by
itself. It does not know processors.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from castile.planner.graph import Node
from castile.planner.op import Op, Part
from castile.planner.sketch.arrays import Layouts
from castile.planner.sketch.prices import MOST_DIMS
from castile.planner.sketch.spaces import SpaceTable
from castile.runtime.region import Box, blocks

Blocks = tuple[tuple[int, ...], tuple[int, ...]]


class LayoutTable:
    """The layouts asked for so far, numbered."""

    def __init__(self, table: SpaceTable) -> None:
        self._table = table
        self._numbers: dict[object, int] = {}
        self._rows: list[tuple[int, list[tuple[int, dict[int, Blocks]]], list[bool]]] = []

    def number(self, node: Node, space: int, is_operand: bool, index: int) -> int:
        """The layout of a node's operand or result."""
        a = node.alignment
        operand = (a.operands if is_operand else a.results)[index]
        # What follows the law is told by its axes; other operators may read otherwise with other settings.
        who = () if _is_lawful(node, is_operand) else (node.op, index)
        key = (who, operand.dims, tuple(a.extents.items()), space)
        if key not in self._numbers:
            rows, borne = self._made(node, space, is_operand, index)
            same = (space, tuple((axis, tuple(sorted(of.items()))) for axis, of in rows), tuple(borne))
            if same not in self._numbers:
                self._numbers[same] = len(self._rows)
                self._rows.append((space, rows, borne))
            self._numbers[key] = self._numbers[same]
        return self._numbers[key]

    def bears_all(self, number: int) -> bool:
        """Whether every axis that may be cut cuts the array."""
        return all(self._rows[number][2])

    def arrays(self, first: np.ndarray) -> tuple[Layouts, int]:
        """All of it, flat, and how many contents there may be; first: where the Configs of each space begin."""
        degrees, width = self._table.degrees, self._table.width
        rank = {degree: n for n, degree in enumerate(degrees)}
        count = len(self._rows)
        base, dims = np.zeros(count, np.int64), np.zeros(count, np.int64)
        axis, bears = np.full((count, MOST_DIMS), -1), np.zeros((count, width), np.bool_)
        table = np.zeros((count, MOST_DIMS, len(degrees)), np.int64)
        lo: list[int] = []
        hi: list[int] = []
        offset = 0
        for n, (space, rows, borne) in enumerate(self._rows):
            base[n], dims[n], bears[n, : len(borne)] = offset - first[space], len(rows), borne
            offset += int(first[space + 1] - first[space])
            for d, (a, of) in enumerate(rows):
                axis[n, d] = a
                for degree, (los, his) in of.items():
                    table[n, d, rank[degree]] = len(lo)
                    lo += los
                    hi += his
        return Layouts(base, dims, axis, table, bears, np.array(lo, np.int64), np.array(hi, np.int64)), offset

    def _made(
        self, node: Node, space: int, is_operand: bool, index: int
    ) -> tuple[list[tuple[int, dict[int, Blocks]]], list[bool]]:
        axes = self._table.axes[space]
        whole = _box(node.whole(), is_operand, index)
        assert len(whole.shape) <= MOST_DIMS, f"{node.name}: arrays of {len(whole.shape)} dims are too many"
        rows: list[tuple[int, dict[int, Blocks]]] = [
            (-1, {1: ((lo,), (hi,))}) for lo, hi in zip(whole.lo, whole.hi, strict=True)
        ]
        borne = [False] * len(axes)
        for number, axis in enumerate(axes):
            degrees = {split.get(axis, 1) for split in self._table.splits[space]} - {1}
            for d, of in self._cut(node, is_operand, index, axis, degrees, whole).items():
                borne[number] = True
                rows[d] = (number, {**rows[d][1], **of})
        return rows, borne

    def _cut(
        self, node: Node, is_operand: bool, index: int, axis: str, degrees: Iterable[int], whole: Box
    ) -> dict[int, dict[int, Blocks]]:
        """By dim that an axis cuts: the blocks of each degree."""
        a = node.alignment
        operand = (a.operands if is_operand else a.results)[index]
        inner = {d: whole.hi[d] // a.extents[axis] for d, dim in enumerate(operand.dims) if dim and dim[0] == axis}

        def lawful(some: Iterable[int]) -> dict[int, dict[int, Blocks]]:
            plain = {degree: blocks(a.extents[axis], degree) for degree in some}
            return {
                d: {g: (tuple(lo * n for lo, _ in of), tuple(hi * n for _, hi in of)) for g, of in plain.items()}
                for d, n in inner.items()
            }

        # Most axes of operators that read otherwise are as the line says: two halves tell.
        if _is_lawful(node, is_operand) or _seen(node, index, axis, {2}, whole) == lawful({2}):
            return lawful(degrees)
        return _seen(node, index, axis, degrees, whole)


def _seen(node: Node, index: int, axis: str, degrees: Iterable[int], whole: Box) -> dict[int, dict[int, Blocks]]:
    """By dim that an axis cuts: the blocks of each degree, each asked for."""
    found: dict[int, dict[int, Blocks]] = {}
    ranges = node.whole().ranges
    for degree in degrees:
        pieces = blocks(node.alignment.extents[axis], degree)
        boxes = [node.op.reads(index, Part(node.op, node.alignment, {**ranges, axis: block})) for block in pieces]
        for d in range(len(whole.lo)):
            los, his = tuple(b.lo[d] for b in boxes), tuple(b.hi[d] for b in boxes)
            if set(los) != {whole.lo[d]} or set(his) != {whole.hi[d]}:
                found.setdefault(d, {})[degree] = (los, his)
    for d, of in found.items():
        # Windows may see all of a dim where it is cut in few, and less where it is cut in many.
        for degree in degrees:
            of.setdefault(degree, ((whole.lo[d],) * degree, (whole.hi[d],) * degree))
    return found


def _is_lawful(node: Node, is_operand: bool) -> bool:
    return not is_operand or type(node.op).reads is Op.reads


def _box(part: Part, is_operand: bool, index: int) -> Box:
    return part.reads(index) if is_operand else part.writes(index)

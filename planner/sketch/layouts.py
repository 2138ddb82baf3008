"""Where the parts of a port lie in its array: for each dim the axis that cuts it, and where its blocks begin and end.

Most ports lie as the operator's axis line says. Operators may read more than that (halos of windows, offsets): their
hook is asked for each axis, cut while all others are whole. It does not know processors.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from castile.planner.axes import Operand
from castile.planner.graph import Node
from castile.planner.lowering.vectorized import Pairs, all_blocks, call_vectorized, one_axis_at_a_time
from castile.planner.op import Part
from castile.planner.sketch.arrays import Layouts
from castile.planner.sketch.spaces import SpaceTable
from castile.planner.sketch.transfer_costs import MOST_DIMS
from castile.runtime.region import Box

# For each axis the degrees above 1 into which it may be cut.
Cuts = tuple[tuple[str, tuple[int, ...]], ...]
# By dim where the blocks of an axis begin and end: first uncut, then the blocks of one degree after another.
Blocks = dict[int, Pairs]


class Reads(NamedTuple):
    """What parts read of an operand: the box that the whole node reads, and for each axis that is cut the dims that it
    cuts, with what each of its blocks reads of them.
    """

    whole: Box
    by_axis: list[Blocks]


class Dim(NamedTuple):
    """The axis that cuts a dim, -1 for none, its degrees above 1, and where its blocks begin and end in the array:
    first uncut, then the blocks of one degree after those of another.
    """

    axis: int
    degrees: tuple[int, ...]
    lo: np.ndarray
    hi: np.ndarray


class LayoutTable:
    """The layouts asked for so far, numbered. A layout belongs to a space: it says where parts lie for all of its
    splits.

    kind   equal for nodes whose parts lie alike
    """

    def __init__(self, table: SpaceTable, kind: Callable[[Node], int]) -> None:
        self._table, self.kind = table, kind
        self._cuts: list[Cuts] = [tuple(zip(*of, strict=True)) for of in zip(table.axes, table.cuts, strict=True)]
        self._numbers: dict[object, int] = {}
        self._dims: list[Dim] = []
        self._number_of: dict[object, int] = {}
        # For each layout its space, the numbers of its dims, and by axis of the space whether it cuts any.
        self._rows: list[tuple[int, list[int], list[bool]]] = []

    def number(self, node: Node, space: int, is_operand: bool, index: int, begin: tuple[int, ...] = ()) -> int:
        """The number of the layout of a node's operand or result, in an array in which it begins at `begin`, () where
        the two are one.
        """
        asker = (self.kind(node), space, is_operand, index, begin)
        if asker not in self._numbers:
            if is_operand and not node.op.follows(index):
                rows, borne = self._as_read(node, space, index, begin)
            else:
                operand = (node.alignment.operands if is_operand else node.alignment.results)[index]
                rows, borne = self._by_law(node, space, operand, begin)
            assert len(rows) <= MOST_DIMS, f"{node.name}: arrays of {len(rows)} dims are too many"
            same = (space, tuple(rows), tuple(borne))
            if same not in self._numbers:
                self._numbers[same] = len(self._rows)
                self._rows.append((space, rows, borne))
            self._numbers[asker] = self._numbers[same]
        return self._numbers[asker]

    def bears_all(self, number: int) -> bool:
        """Whether every axis that may be cut cuts the array."""
        return all(self._rows[number][2])

    def arrays(self, first: np.ndarray) -> tuple[Layouts, int]:
        """(flat arrays of all layouts, how many pairs of a layout and a Config there are); first: where the Configs of
        each space begin.
        """
        degrees, count = self._table.degrees, len(self._rows)
        axis, table = np.full((count, MOST_DIMS), -1), np.zeros((count, MOST_DIMS, len(degrees)), np.int64)
        begin, blocks = 0, np.zeros((len(self._dims), len(degrees)), np.int64)
        for n, dim in enumerate(self._dims):
            each = (1, *dim.degrees)
            blocks[n, [degrees.index(degree) for degree in each]] = list(accumulate(each[:-1], initial=begin))
            begin += len(dim.lo)
        every = [(n, d, number) for n, (_, rows, _) in enumerate(self._rows) for d, number in enumerate(rows)]
        places = np.array(every, np.int64).reshape(-1, 3).T
        axis[places[0], places[1]] = np.array([dim.axis for dim in self._dims], np.int64)[places[2]]
        table[places[0], places[1]] = blocks[places[2]]
        bears = np.zeros((count, self._table.width), np.bool_)
        for n, (_, _, borne) in enumerate(self._rows):
            bears[n, : len(borne)] = borne
        space = np.array([space for space, _, _ in self._rows], np.int64)
        ends = np.cumsum(np.diff(first)[space])
        dims = np.array([len(rows) for _, rows, _ in self._rows], np.int64)
        lo, hi = (np.concatenate([np.zeros(0, np.int64), *(dim[end] for dim in self._dims)]) for end in (2, 3))
        return Layouts(ends - first[space + 1], dims, axis, table, bears, lo, hi), int(ends[-1]) if count else 0

    def _by_law(self, node: Node, space: int, operand: Operand, begin: tuple[int, ...]) -> tuple[list[int], list[bool]]:
        """(the numbers of its dims, by axis whether it cuts any) of an operand or result that lies as the axis line
        says.
        """
        axes, cuts, a = self._table.axes[space], self._table.cuts[space], node.alignment
        rows = []
        for n, dim in enumerate(operand.dims):
            number = axes.index(dim[0]) if dim and dim[0] in axes else -1
            degrees = cuts[number] if number >= 0 else ()
            extent = a.extents[dim[0]] if dim else 1
            whole = a.dim_range(dim, (0, extent)) if dim else (0, 1)
            key = number, degrees, extent, whole, begin[n] if begin else 0
            if key not in self._number_of:
                blocks = all_blocks(extent, (1, *degrees))
                lo, hi = a.dim_range(dim, blocks) if dim else blocks
                self._number_of[key] = self._dim(Dim(number, degrees, lo + key[-1], hi + key[-1]))
            rows.append(self._number_of[key])
        cut = {dim[0] for dim in operand.dims if dim}
        return rows, [axis in cut for axis in axes]

    def _as_read(self, node: Node, space: int, index: int, begin: tuple[int, ...]) -> tuple[list[int], list[bool]]:
        """The same of an operand whose reads the operator's hook decides."""
        whole, by_axis = reads_of(node, index, self._cuts[space])
        rows = []
        for d, (lo, hi, first) in enumerate(zip(*whole, begin or (0,) * len(whole.lo), strict=True)):
            number = max((n for n, of in enumerate(by_axis) if d in of), default=-1)
            los, his = by_axis[number][d] if number >= 0 else (np.array([lo]), np.array([hi]))
            degrees = self._table.cuts[space][number] if number >= 0 else ()
            rows.append(self._dim(Dim(number, degrees, los + first, his + first)))
        return rows, [bool(of) for of in by_axis]

    def _dim(self, dim: Dim) -> int:
        """The number of a dim: equal ones have the same."""
        key = dim.axis, dim.degrees, dim.lo.tobytes(), dim.hi.tobytes()
        number = self._number_of.setdefault(key, len(self._dims))
        if number == len(self._dims):
            self._dims.append(dim)
        return number


def reads_of(node: Node, index: int, cuts: Cuts) -> Reads:
    """What parts read of an operand, asked for each of these axes while all others are whole."""
    a, num_dims = node.alignment, len(node.alignment.operands[index].dims)
    if not num_dims or not cuts:
        return Reads(node.whole().reads(index), [{} for _ in cuts])
    lo, hi, ends = one_axis_at_a_time(tuple([(a.extents[axis], (1, *degrees)) for axis, degrees in cuts]))
    ranges: dict[str, Any] = {axis: (first, last) for (axis, _), first, last in zip(cuts, lo, hi, strict=True)}
    part = Part(node.op, a, {**node.whole().ranges, **ranges})
    read = call_vectorized(lambda: part.reads(index))
    places = [slice(*place) for place in zip((0, *ends), ends)]
    found = np.empty((2, num_dims, ends[-1]), np.int64)
    each = [(read, slice(None))] if read is not None else [
        (_one_by_one(node, index, axis, (1, *degrees)), place) for (axis, degrees), place in zip(cuts, places)
    ]  # fmt: skip
    for every, place in each:
        for end, dims in zip(found, every, strict=True):
            for d, of in enumerate(dims):
                end[d, place] = of
    # The first is uncut. Windows may see all of a dim where an axis is cut in few parts, and less where in many.
    whole = found[:, :, 0]
    differ = np.logical_or.reduceat((found != whole[:, :, None]).any(axis=0), (0, *ends[:-1]), axis=1)
    by_axis = [
        {d: (found[0, d, place], found[1, d, place]) for d, differs in enumerate(of) if differs}
        for of, place in zip(differ.T.tolist(), places, strict=True)
    ]
    return Reads(Box(*map(tuple, whole.tolist())), by_axis)


def _one_by_one(node: Node, index: int, axis: str, degrees: tuple[int, ...]) -> Box:
    """The boxes, dim by dim, that blocks of an axis read of an operand whose hook takes no arrays."""
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

    # Most axes even of such operators follow the axis line: the coarsest and the finest cut show whether they do.
    is_lawful = all(_are_same(each(few), law(few)) for few in (degrees[1:2], degrees[-1:]))
    return law(degrees) if is_lawful else each(degrees)


def _are_same(one: Box, other: Box) -> bool:
    return all(np.all(a == b) for a, b in zip((*one.lo, *one.hi), (*other.lo, *other.hi), strict=True))


def _where(node: Node, axis: str, blocks: Pairs) -> Part:
    """Parts that have only these blocks of an axis, and all of every other."""
    return Part(node.op, node.alignment, {**node.whole().ranges, axis: blocks})  # type: ignore[dict-item]

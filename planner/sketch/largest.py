"""The largest part of a node under each of many splits: its shapes, operations and bytes.

Many splits are handled at once: degrees, lengths, operations and bytes are arrays with an entry for each split where
the operator's hooks take arrays; other hooks are called split by split. It does not know passes of a program, nor
prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any

import msgspec
import numpy as np

from castile.planner.graph import Node
from castile.planner.lowering.vectorized import Cut, call_vectorized
from castile.planner.op import Op, Part
from castile.planner.sketch.layouts import reads_of


class Largest:
    """The largest part of a node under each of many splits, or under one.

    It may stand for several nodes that differ only in extents: the splits of the first, then those of the second, ...
    cut     by axis its degree, a number or an array with an entry for each split
    count   the number of splits in all
    """

    def __init__(self, nodes: Sequence[Node], cut: Cut, counts: Sequence[int]) -> None:
        self.node, self.cut, self.count = nodes[0], cut, sum(counts)
        self._nodes, self._counts = nodes, counts
        self._sizes: dict[object, Any] = {}
        self._flops: dict[str, Any] = {}
        self._looks: dict[str, Any] = {}

    @classmethod
    def joined(cls, every: Sequence[Largest]) -> Largest:
        """Merge those of several nodes that differ only in extents."""
        axes = dict.fromkeys(axis for one in every for axis in one.cut)
        each = {axis: [np.broadcast_to(one.cut.get(axis, 1), one.count) for one in every] for axis in axes}
        cut = {axis: np.concatenate(of) for axis, of in each.items()}
        return every[0] if len(every) == 1 else cls([one.node for one in every], cut, [one.count for one in every])

    @cached_property
    def part(self) -> Part:
        """The part itself, whose ranges are numbers, or arrays with an entry for each split."""
        part = _largest(self.node if len(self._nodes) == 1 else _joined(self._nodes, self._counts), self.cut)
        return _at_end(part) if self._is_last else part

    @cached_property
    def _is_last(self) -> bool:
        """Whether a part at the end of an axis has more operations than one at the beginning of equal length, as the
        last rows of causal attention do.
        """
        if type(self.node.op).flops is Op.flops:
            return False
        if len(self._nodes) > 1:
            return any(one._is_last for one in self._each)
        first = _largest(self.node, self.cut)
        return bool(np.any(self._counted("flops", "F", _at_end(first)) > self._counted("flops", "F", first)))

    @cached_property
    def _each(self) -> list[Largest]:
        """One for each node by itself."""
        ends = np.cumsum(self._counts)[:-1]
        parts = [dict(zip(self.cut, row)) for row in zip(*(np.split(of, ends) for of in self.cut.values()))]
        rows = zip(self._nodes, parts or [{} for _ in self._nodes], self._counts, strict=True)
        return [Largest([node], cut, [count]) for node, cut, count in rows]

    def _of_each(self, found: Sequence[Any]) -> np.ndarray:
        """Concatenate values of each node, one for all of its splits or one for each split."""
        return np.concatenate([np.broadcast_to(one, count) for one, count in zip(found, self._counts, strict=True)])

    def like(self, nodes: Sequence[Node], cut: Cut) -> Largest:
        """The same splits of other nodes, as many of each."""
        return Largest(nodes, cut, self._counts)

    def shape(self, is_operand: bool, index: int) -> tuple[Any, ...]:
        """The shape of its box of an operand or result: numbers, or arrays with an entry for each split."""
        box = call_vectorized(lambda: self.part.reads(index) if is_operand else self.part.writes(index))
        return self._by_axis(index) if box is None else box.shape

    def size(self, is_operand: bool, index: int) -> Any:
        """The elements of that shape."""
        key: object = (is_operand, index)
        if not is_operand or self.node.op.follows(index):
            # Many ports of a node have the same dims: all those of an update do.
            a = self.node.alignment
            key = (a.operands if is_operand else a.results)[index].dims
        if key not in self._sizes:
            self._sizes[key] = prod(self.shape(is_operand, index))
        return self._sizes[key]

    def touches(self, index: int) -> Any:
        """The number of an operand's elements that a pass reads, where it need not read all, as in look-ups of rows."""
        return self.part.touches(index)

    def flops(self, which: str) -> Any:
        """The operations of a pass."""
        which = "" if type(self.node.op).flops is Op.flops else which
        if which not in self._flops:
            self._flops[which] = self._counted("flops", which, self.part)
        return self._flops[which]

    def looks(self, which: str) -> Any:
        """The numbers that a pass finds by looking at short rows again and again (`Op.looks`)."""
        if which not in self._looks:
            self._looks[which] = self._counted("looks", which, self.part) if self.node.op.has_looks else 0
        return self._looks[which]

    @cached_property
    def rows(self) -> Any:
        """The rows of images over which windows slide (`Op.rows`)."""
        if not self.node.op.has_rows:
            return 0
        if len(self._nodes) > 1:
            return self._of_each([one.rows for one in self._each])
        return self.node.op.rows(self.shape(True, 0), self.shape(False, 0), self.node.alignment.extents)

    def _counted(self, what: str, which: str, part: Part) -> Any:
        """The "flops" or "looks" of a pass, by split."""
        op, ranges = self.node.op, part.ranges
        count = getattr(op, what)
        found = call_vectorized(lambda: count(which, part))
        if found is not None:
            return found
        if len(self._nodes) > 1:
            return self._of_each([getattr(one, what)(which) for one in self._each])
        ends = np.broadcast_arrays(np.empty(self.count), *chain.from_iterable(ranges.values()))[1:]
        parts = (dict(zip(ranges, zip(row[::2], row[1::2]))) for row in np.array(ends).T.tolist())
        return np.array([count(which, Part(op, self.node.alignment, of)) for of in parts])

    def _by_axis(self, index: int) -> tuple[Any, ...]:
        """The shape of an operand whose hook takes no arrays: found axis by axis, with the other axes whole."""
        if len(self._nodes) > 1:
            return tuple(map(self._of_each, zip(*[one.shape(True, index) for one in self._each], strict=True)))
        degrees = {axis: tuple(sorted({*degree.tolist()} - {1})) for axis, degree in self.cut.items()}
        cuts = tuple([(axis, of) for axis, of in degrees.items() if of])
        whole, by_axis = reads_of(self.node, index, cuts)
        shape: list[Any] = list(whole.shape)
        for (axis, of), blocks in zip(cuts, by_axis, strict=True):
            firsts = np.cumsum([1, *of[:-1]])
            for d, (lo, hi) in blocks.items():
                lengths = np.full(of[-1] + 1, shape[d])
                lengths[list(of)] = (hi - lo)[firsts]
                shape[d] = lengths[self.cut[axis]]
        return tuple(shape)


def _joined(nodes: Sequence[Node], counts: Sequence[int]) -> Node:
    """A node whose extents are arrays: the extents of these nodes, each repeated for its number of splits."""
    a = nodes[0].alignment
    extents: Any = {axis: np.repeat([node.alignment.extents[axis] for node in nodes], counts) for axis in a.axes}
    return msgspec.structs.replace(nodes[0], alignment=replace(a, extents=extents))


def _largest(node: Node, cut: Cut) -> Part:
    """The first part of a node under each split, which is the longest."""
    a = node.alignment
    return Part(node.op, a, {axis: (0, -(-n // cut.get(axis, 1))) for axis, n in a.extents.items()})


def _at_end(part: Part) -> Part:
    """A part of equal length at the end of every axis."""
    extents = part.alignment.extents
    return Part(part.op, part.alignment, {x: (extents[x] - hi, extents[x]) for x, (_, hi) in part.ranges.items()})

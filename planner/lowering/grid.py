"""Grids: the parts of a node under a split, the boxes that each touches, and which parts are equal.

Parts are in row-major order of the axis line. It does not know what parts compute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from castile.planner.axes import Operand
from castile.planner.graph import Node
from castile.planner.lowering.vectorized import call_vectorized
from castile.planner.op import Op, Part
from castile.planner.step.program import Micro, Port
from castile.planner.strategy import ranges
from castile.runtime.region import Box, moved


class Numbering(NamedTuple):
    """A partition of parts into kinds: the kind of each part, and the first part of each kind."""

    of: tuple[int, ...]
    firsts: tuple[int, ...]


class Layout:
    """The boxes of an array that parts touch: the distinct boxes, and the number of each part's.

    is_even   whether parts of equal lengths along all axes touch boxes of one shape
    """

    def __init__(self, boxes: Sequence[Box], of: tuple[int, ...], is_even: bool) -> None:
        self.boxes, self.of, self.is_even = boxes, of, is_even
        self._shapes: dict[int, tuple[int, ...]] = {}

    def shape(self, part: int) -> tuple[int, ...]:
        number = self.of[part]
        if number not in self._shapes:
            self._shapes[number] = self.boxes[number].shape
        return self._shapes[number]

    @property
    def are_apart(self) -> bool:
        """Whether the axes imply that the parts' boxes are disjoint. False also where that would have to be checked."""
        return self.is_even and len(self.boxes) == len(self.of)

    def each(self, change: Callable[[Box], Box]) -> Layout:
        """The layout with a function applied to each box."""
        return Layout([change(box) for box in self.boxes], self.of, self.is_even)

    @cached_property
    def by_part(self) -> tuple[Box, ...]:
        return tuple(map(self.boxes.__getitem__, self.of))

    @cached_property
    def by_shape(self) -> Numbering:
        """The partition by the shapes of boxes."""
        shapes = [box.shape for box in self.boxes]
        return distinct(list(map(shapes.__getitem__, self.of)))


class Grid:
    """The parts of a node under a split, for one microbatch of its sample axis; the same for all passes."""

    def __init__(self, node: Node, split: Mapping[str, int], axis: str, micro: Micro) -> None:
        self.node, self._axis, self._micro = node, axis, micro
        self.blocks = dict(zip(node.alignment.axes, ranges(node, split, axis, (micro.number, micro.count))))
        cut = [name for name, own in self.blocks.items() if len(own) > 1]
        self._dims = {name: dim for dim, name in enumerate(cut)}
        self._degrees = tuple([len(self.blocks[name]) for name in cut])
        self.count = prod(self._degrees)
        self._parts: dict[int, Part] = {}
        self._layouts: dict[object, Layout] = {}
        self._flops: dict[str, Sequence[float]] = {}

    def part(self, number: int) -> Part:
        if number not in self._parts:
            rest, of = number, {axis: own[0] for axis, own in self.blocks.items()}
            for axis in reversed(self._dims):
                rest, at = divmod(rest, len(self.blocks[axis]))
                of[axis] = self.blocks[axis][at]
            self._parts[number] = Part(self.node.op, self.node.alignment, of)
        return self._parts[number]

    @cached_property
    def _every(self) -> Part:
        """All parts at once, to vectorise hooks: the range of a cut axis is two object arrays of Python integers."""
        at = {axis: self.along((axis,)).of for axis in self._dims}
        cut = {axis: np.array(self.blocks[axis], object)[list(of)].T for axis, of in at.items()}
        of = {axis: (cut[axis][0], cut[axis][1]) if axis in cut else own[0] for axis, own in self.blocks.items()}
        return Part(self.node.op, self.node.alignment, of)

    def along(self, axes: Collection[str]) -> Numbering:
        """The partition by the ranges of these axes, with kinds in the order of the axes."""
        return _along(self._degrees, tuple([self._dims[axis] for axis in axes if axis in self._dims]))

    @cached_property
    def by_length(self) -> Numbering:
        """The partition by the lengths along all axes."""
        lengths = [[hi - lo for lo, hi in self.blocks[axis]] for axis in self._dims]
        if all(len(set(own)) == 1 for own in lengths):
            return self.along(())
        return distinct(list(product(*lengths)))

    def flops(self, which: str, part: int) -> float:
        """The floating-point operations of a part's pass."""
        op = self.node.op
        return op.flops(which, self.part(part)) if type(op).flops is Op.flops else self._flops_of(which)[part]

    def by_flops(self, which: str) -> Numbering:
        """The partition by the operations of a pass; a single kind where lengths determine these."""
        return self.along(()) if type(self.node.op).flops is Op.flops else distinct(self._flops_of(which))

    def _flops_of(self, which: str) -> Sequence[float]:
        op = self.node.op
        if which not in self._flops:
            found: Any = call_vectorized(lambda: op.flops(which, self._every))
            if found is None:
                self._flops[which] = [op.flops(which, self.part(n)) for n in range(self.count)]
            else:
                self._flops[which] = self._of_each(found)
        return self._flops[which]

    def _of_each(self, found: Any) -> list[Any]:
        """By part, what a hook returned for all parts at once: one value, or an array."""
        return found.tolist() if isinstance(found, np.ndarray) else [found] * self.count

    def layout(self, port: Port) -> Layout:
        """The boxes that parts touch of a port's region, relative to the beginning of its microbatch, or of the port.
        """
        key = port.of_operand, port.index, port.cut, port.begin
        if key not in self._layouts:
            self._layouts[key] = self._find(port) if key[2:] == (None, ()) else self._moved(port)
        return self._layouts[key]

    def _moved(self, port: Port) -> Layout:
        a = self.node.alignment
        shape = a.shape((a.operands if port.of_operand else a.results)[port.index])
        by = list(port.begin or (0,) * len(shape))
        if port.cut is not None:
            by[port.cut] -= self._micro.number * (shape[port.cut] // self._micro.count)
        return self.layout(Port(port.role, port.index, port.region)).each(lambda box: moved(box, by))

    def _find(self, port: Port) -> Layout:
        a = self.node.alignment
        operand = (a.operands if port.of_operand else a.results)[port.index]
        axes = [dim[0] for dim in operand.dims if dim]
        follows = not port.of_operand or self.node.op.follows(port.index)
        if not follows or len(set(axes)) < len(axes):
            return self._by_hook(port.index)
        # many arrays of a node have the same dims, as in an update
        if operand.dims not in self._layouts:
            self._layouts[operand.dims] = self._along(operand, axes)
        return self._layouts[operand.dims]

    def _along(self, operand: Operand, axes: Sequence[str]) -> Layout:
        """The boxes that parts touch by the axes of an array."""
        a = self.node.alignment
        dims = [[a.dim_range(dim, own) for own in self.blocks[dim[0]]] if dim else [(0, 1)] for dim in operand.dims]
        return _layout_of_blocks(tuple(map(tuple, dims)), self.along(axes).of, a.uneven.isdisjoint(operand.axes))

    def _by_hook(self, operand: int) -> Layout:
        """The boxes that parts read by the operator's `reads`."""
        found = call_vectorized(lambda: self._every.reads(operand))
        if found is None:
            every = [self.part(n).reads(operand) for n in range(self.count)]
        else:
            los, his = (zip(*map(self._of_each, of)) if of else [()] * self.count for of in found)
            every = list(map(Box, los, his))
        kinds = distinct(every)
        return Layout([every[first] for first in kinds.firsts], kinds.of, False)


def distinct(rows: Sequence[Hashable]) -> Numbering:
    """The partition by equal rows, with kinds in order of appearance."""
    numbers: dict[Hashable, int] = {}
    of = tuple([numbers.setdefault(row, len(numbers)) for row in rows])
    return Numbering(of, tuple(map(of.index, range(len(numbers)))))


@lru_cache(maxsize=4096)
def _layout_of_blocks(dims: tuple[tuple[tuple[int, int], ...], ...], of: tuple[int, ...], is_even: bool) -> Layout:
    """The layout of an array whose dims are cut into these blocks: one object for all equal ones."""
    boxes = [Box(*zip(*row)) for row in product(*dims)] if dims else [Box((), ())]
    return Layout(boxes, of, is_even)


@lru_cache(maxsize=4096)
def refinement(one: Numbering, other: Numbering) -> Numbering:
    """The common refinement of two partitions."""
    if len(other.firsts) == 1:
        return one
    return other if len(one.firsts) == 1 else distinct(list(zip(one.of, other.of)))


@lru_cache(maxsize=4096)
def _along(degrees: tuple[int, ...], dims: tuple[int, ...]) -> Numbering:
    others = [dim for dim in range(len(degrees)) if dim not in dims]
    kinds = np.arange(prod(degrees)).reshape(degrees).transpose(*dims, *others)
    rows = kinds.reshape(prod(kinds.shape[: len(dims)]), -1)
    of = np.empty(rows.size, np.int64)
    of[rows] = np.arange(len(rows))[:, None]
    return Numbering(tuple(of.tolist()), tuple(rows[:, 0].tolist()))

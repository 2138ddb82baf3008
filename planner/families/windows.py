"""Windows that slide over array dims: what a block of outputs sees of a dim, how much padding, and how they are cut.

It does not know what is computed inside a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from castile.planner.axes import Alignment
from castile.planner.op import Op, Part
from castile.runtime.region import Box

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]


def pair(value: int | Sequence[int]) -> Pair:
    """One number for rows and columns alike, or one for each. Raises ValueError for more or fewer."""
    if isinstance(value, int):
        return value, value
    if len(value) != 2:
        raise ValueError(f"{value} should be one number, or two, for rows and for columns")
    return value[0], value[1]


def reach(kernel: int, dilation: int) -> int:
    """Elements from the first to the last that a window sees. Raises ValueError for a dilation below 1."""
    if dilation < 1:
        raise ValueError(f"a dilation of {dilation} should be at least 1")
    return (kernel - 1) * dilation + 1


def count(length: int, kernel: int, stride: int, ends: Pair) -> int:
    """How many windows of `kernel` elements from first to last fit on a dim padded at both ends.

    Raises ValueError where one could see only padding, or none fits.
    """
    if stride < 1:
        raise ValueError(f"a stride of {stride} does not move: it should be at least 1")
    for padding in ends:
        if not 0 <= padding < kernel:
            raise ValueError(f"padding {padding} should be at least 0 and smaller than the kernel, {kernel}")
    windows = (length + sum(ends) - kernel) // stride + 1
    if windows < 1:
        padded = f"padding {ends[0]}" if ends[0] == ends[1] else f"padding {ends[0]} and {ends[1]}"
        raise ValueError(f"a kernel of {kernel} does not fit {length} elements with {padded}")
    return windows


def window(block: Pair, length: int, kernel: int, stride: int, padding: int, last: bool) -> tuple[Pair, Pair]:
    """What a block of outputs sees of a dim: (lo, hi) inside the array, and the padding before and after it.

    To the last block belongs what no window sees beyond it, as negative padding, so that a whole gradient is one array.
    """
    lo = block[0] * stride - padding
    hi = (block[1] - 1) * stride - padding + kernel
    before, after = _above(-lo), _above(hi - length)
    unseen = last * _above(length - hi)
    return (lo + before, hi - after + unseen), (before, after - unseen)


def _above(number: int) -> int:
    """The number where it is above 0, else 0: by arithmetic, so that arrays of blocks are asked for at once."""
    return (number + abs(number)) // 2


def rows(x: Sequence[Any], y: Sequence[Any], stride: int) -> Any:
    """Rows of images x and of images y where windows on x make y, `stride` columns apart: each of x becomes so many."""
    return stride * prod(x[:-1]) + prod(y[:-1])


class Sliding(Op):
    """Base of operators whose windows slide over the last dims of their first operand, one result a window.

    seen, made   the axes that windows slide over, and those that count them
    Its subclasses have the settings stride, padding and, if they like, dilation: a number for each of those dims.
    """

    seen: ClassVar[tuple[str, ...]] = ("H", "W")
    made: ClassVar[tuple[str, ...]] = ("h", "w")
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...] = (1, 1)

    def sizes(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        """How many elements of each dim a window sees."""
        raise NotImplementedError

    def ends(self, dim: int) -> Pair:
        """The padding before and after a dim."""
        return self.padding[dim], self.padding[dim]

    def extents(self, known: dict[str, int]) -> dict[str, int]:
        sizes = self.sizes(known)
        return {
            made: count(known[seen], reach(sizes[n], self.dilation[n]), self.stride[n], self.ends(n))
            for n, (seen, made) in enumerate(zip(self.seen, self.made, strict=True))
        }

    def windows(self, at: Part) -> list[tuple[Pair, Pair]]:
        """For each dim what a part sees of it, and the padding that it sees before and after."""
        sizes = self.sizes(at.alignment.extents)
        found = []
        for n, (seen, made) in enumerate(zip(self.seen, self.made, strict=True)):
            block, kernel = at.range(made), reach(sizes[n], self.dilation[n])
            last = block[1] == at.extent(made)
            found.append(window(block, at.extent(seen), kernel, self.stride[n], self.ends(n)[0], last))
        return found

    def pads(self, at: Part) -> Pads:
        """The padding that a part sees: top, bottom, left, right; none at the top and bottom of a single dim."""
        found = [n for _, ends in self.windows(at) for n in ends]
        top, bottom, left, right = [0] * (4 - len(found)) + found
        return top, bottom, left, right

    def rows(self, x: Sequence[Any], y: Sequence[Any], extents: Mapping[str, int]) -> Any:
        return rows(x, y, 1)

    def apart(self, operand: int, a: Alignment) -> tuple[str, ...] | None:
        axes = a.operands[operand].axes
        if operand > 0:
            return axes
        each = enumerate(zip(self.sizes(a.extents), self.dilation, self.stride, strict=True))
        if any(reach(size, gaps) != step or self.ends(n) != (0, 0) for n, (size, gaps, step) in each):
            return None
        return (*(axis for axis in axes if axis not in self.seen), *self.made)

    def follows(self, operand: int) -> bool:
        return operand > 0

    def reads(self, operand: int, part: Part) -> Box:
        box = super().reads(operand, part)
        if self.follows(operand):
            return box
        ranges = [inside for inside, _ in self.windows(part)]
        keep = len(box.lo) - len(ranges)
        return Box((*box.lo[:keep], *(lo for lo, _ in ranges)), (*box.hi[:keep], *(hi for _, hi in ranges)))

"""Axis lines: how the axes of an operator's operands and results line up, read from one line of text.

    "... i, *o i -> ... o"        ...  leading axes      *  a parameter      !  an axis that may not be split
    "b s (h d) -> b h s d"        (h d)  a merged dim: one array dim that runs over h outside and d inside
    "... (p ~v) -> ... p"         (p ~v) an array dim v long altogether, of which each p is a block, as even as can be

It does not know operators' bodies, strategies or processors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from math import prod
from typing import Any

import msgspec

from castile.runtime.region import Box

LEADING = "..."
_TOKEN = re.compile(r"\(([^()]*)\)|(\.\.\.)|(~?[A-Za-z_]\w*!?)|(\S)")


class Operand(msgspec.Struct, frozen=True):
    """The axes of one operand or result: a tuple of axis names for each array dim, several where axes are merged.

    order   the dims in memory order, the outermost first, as the region has them; () for the order of `dims`
    """

    dims: tuple[tuple[str, ...], ...]
    param: bool = False
    order: tuple[int, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(axis for dim in self.dims for axis in dim)

    @property
    def positions(self) -> tuple[int, ...]:
        """The position of each dim in the region; () where the order is that of `dims`."""
        return tuple([self.order.index(dim) for dim in range(len(self.order))]) if self.order else ()

    def region_box(self, box: Box) -> Box:
        """The box of the region for a box whose dims are in the order of `dims`."""
        if not self.order:
            return box
        return Box(tuple([box.lo[dim] for dim in self.order]), tuple([box.hi[dim] for dim in self.order]))


@dataclass(frozen=True)
class Line:
    """A parsed axis line. Frozen axes may not be split; blocks of a dim with an uneven axis differ in length."""

    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    frozen: frozenset[str]
    uneven: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Alignment:
    """An axis line fitted to shapes: the axes in the order of the line, their extents, and the axes of each array.

    The extent of an uneven axis is the sum over all blocks.
    """

    axes: tuple[str, ...]
    extents: Mapping[str, int]
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    frozen: frozenset[str]
    uneven: frozenset[str] = frozenset()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Equal nodes are found by their alignments, so the hash is computed once and read often.
        return hash((tuple(self.extents.items()), self.operands, self.results))

    @cached_property
    def is_ordered(self) -> bool:
        """Whether any operand or result has another order in memory than in the axis line."""
        return any(one.order for one in (*self.operands, *self.results))

    def shape(self, operand: Operand) -> tuple[int, ...]:
        return tuple(self._length(dim) for dim in operand.dims)

    def dim_range(self, dim: tuple[str, ...], block: tuple[Any, Any]) -> tuple[Any, Any]:
        """The range of a dim's indices for a block (begin, end) of its first axis: of merged axes only that is cut."""
        if len(dim) == 1:
            return block
        length, first = self._length(dim), self.extents[dim[0]]
        return -(-block[0] * length // first), -(-block[1] * length // first)

    def _length(self, dim: tuple[str, ...]) -> int:
        if self.uneven and dim and dim[-1] in self.uneven:
            return self.extents[dim[-1]]
        return prod([self.extents[axis] for axis in dim])


def dims_over(axis: str, tensors: Sequence[str], borne: Sequence[Operand]) -> dict[str, int]:
    """For each tensor with a dim that runs over an axis, alone or as the outer one of merged axes: that dim's number.

    borne   the operand or result that each tensor is
    """
    rows = ((tensor, n, dim) for tensor, one in zip(tensors, borne, strict=True) for n, dim in enumerate(one.dims))
    return {tensor: n for tensor, n, dim in rows if dim and dim[0] == axis}


@cache
def parse(text: str) -> Line:
    """Parse an axis line. Raises ValueError naming the part that is not understood."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise ValueError(f"axis line {text!r} has no '->'")
    frozen: set[str] = set()
    uneven: set[str] = set()
    operands = tuple(_operand(part, text, frozen, uneven) for part in left.split(","))
    results = tuple(_operand(part, text, frozen, uneven) for part in right.split(","))
    known = {a for o in operands for a in o.axes}
    for result in results:
        if len(set(result.axes)) < len(result.axes):
            raise ValueError(f"axis line {text!r} names an axis twice in a result")
    alone = [a for o in (*operands, *results) for dim in o.dims for a in dim if a in uneven and dim[1:] != (a,)]
    if alone:
        raise ValueError(f"axis line {text!r}: ~{alone[0]} should be the second of two in brackets wherever it is")
    known |= {a for r in results for a in r.axes}
    return Line(operands, results, frozenset(frozen & known), frozenset(uneven))


def _operand(part: str, text: str, frozen: set[str], uneven: set[str]) -> Operand:
    part = part.strip()
    param = part.startswith("*")
    dims = []
    for merged, leading, name, other in _TOKEN.findall(part.removeprefix("*")):
        if other:
            hint = "; give a name to a dim of one element too" if other == "1" else ""
            raise ValueError(f"axis line {text!r}: {other!r} is not understood{hint}")
        names = tuple((leading or merged or name).split())
        bare = tuple(n.strip("~!") for n in names)
        frozen.update(n.strip("~!") for n in names if n.endswith("!"))
        uneven.update(n.strip("~!") for n in names if n.startswith("~"))
        # only whole inner blocks can be cut from a merged dim
        frozen.update(bare[1:])
        dims.append(bare)
    return Operand(tuple(dims), param)


def align(
    line: Line,
    shapes: Sequence[tuple[int, ...]],
    names: Sequence[tuple[str, ...]],
    given: Mapping[str, int],
    derive: Callable[[dict[str, int]], Mapping[str, int]],
    who: str,
) -> Alignment:
    """Fit `line` to operands of `shapes`.

    names    the axis names of each operand's dims; leading axes take theirs from these
    given    extents that the operator states (heads, kernel size)
    derive   computes the extents of axes that only results have from the known ones (the rows of a convolution)
    who      the operator's name, for messages
    Raises ValueError where shapes do not fit.
    """
    if len(shapes) != len(line.operands):
        raise ValueError(f"{who}: takes {len(line.operands)} operands, got {len(shapes)}")
    leading = _leading(line, shapes, names, who)
    operands = tuple(_expand(o, leading) for o in line.operands)
    results = tuple(_expand(r, leading) for r in line.results)
    extents = dict(given)
    for operand, shape in zip(operands, shapes, strict=True):
        _measure(operand, shape, line.uneven, extents, who)
    try:
        derived = derive(dict(extents))
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from error
    extents.update({a: n for a, n in derived.items() if a not in extents})
    axes = tuple(dict.fromkeys(a for o in (*operands, *results) for a in o.axes))
    missing = [a for a in axes if a not in extents]
    if missing:
        raise ValueError(f"{who}: the extent of axis {missing[0]!r} follows from no operand")
    extents = {a: extents[a] for a in axes}
    return canonical(Alignment(axes, extents, operands, results, line.frozen & set(axes), line.uneven))


@lru_cache(maxsize=65536)
def canonical(alignment: Alignment) -> Alignment:
    """The one object that stands for all equal alignments, so that comparing them is comparing identities."""
    return alignment


def _leading(
    line: Line, shapes: Sequence[tuple[int, ...]], names: Sequence[tuple[str, ...]], who: str
) -> tuple[str, ...]:
    taken = {a for o in (*line.operands, *line.results) for a in o.axes} - {LEADING}
    found: tuple[str, ...] | None = None
    for operand, shape, own in zip(line.operands, shapes, names, strict=True):
        if (LEADING,) not in operand.dims:
            continue
        count = len(shape) - (len(operand.dims) - 1)
        if count < 0 or (found is not None and count != len(found)):
            raise ValueError(f"{who}: operand of shape {shape} does not fit the axis line's leading axes")
        if found is None:
            at = operand.dims.index((LEADING,))
            found = tuple(fresh(name, taken) for name in own[at : at + count])
    return found or ()


def fresh(name: str, taken: set[str]) -> str:
    """The axis name, lengthened until it is not in `taken`, and added to that."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def nonnegative_dim(dim: int, ndim: int) -> int:
    """The dim counted from the first; a negative one counts from the last. Unchanged where there is no such dim."""
    return dim + ndim if -ndim <= dim < 0 else dim


@lru_cache(maxsize=4096)
def _expand(operand: Operand, leading: tuple[str, ...]) -> Operand:
    dims: list[tuple[str, ...]] = []
    for dim in operand.dims:
        dims.extend([(a,) for a in leading] if dim == (LEADING,) else [dim])
    return Operand(tuple(dims), operand.param)


def _measure(
    operand: Operand, shape: tuple[int, ...], uneven: frozenset[str], extents: dict[str, int], who: str
) -> None:
    if len(shape) != len(operand.dims):
        raise ValueError(f"{who}: an operand of shape {shape} should have {len(operand.dims)} dims")
    for whole, length in zip(operand.dims, shape, strict=True):
        dim = whole[-1:] if uneven.intersection(whole) else whole
        if length < extents.get(whole[0], 0) and dim != whole:
            raise ValueError(f"{who}: {length} elements are too few for {extents[whole[0]]} blocks (shape {shape})")
        unknown = [a for a in dim if a not in extents]
        known = prod(extents[a] for a in dim if a in extents)
        if len(unknown) == 1 and known and length % known == 0:
            extents[unknown[0]] = length // known
        elif unknown or known != length:
            have = " x ".join(f"{a}={extents.get(a, '?')}" for a in dim)
            raise ValueError(f"{who}: axis {have} does not fit an operand dim of length {length} (shape {shape})")

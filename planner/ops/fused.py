"""Several operators on each element as one: what lies between them is neither written to memory nor kept.

A rewrite makes it of a graph's nodes. Gradients compute anew what lies between, so that kernels that work on elements
alone become one call each (see `fusing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from castile.planner.axes import Alignment, fresh
from castile.planner.op import Op, Part, Tensor, op


class Member(NamedTuple):
    """One operator of a chain; inputs: which operands of the chain it takes, counted on through members' results."""

    op: Op
    inputs: tuple[int, ...]

    def __repr__(self) -> str:
        settings = ",".join(f"{name}={value}" for name, value in self.op.settings)
        return f"{self.op.name}({settings}){list(self.inputs)}"


class Wiring(NamedTuple):
    """How the axes of a chain's members are those of the chain: its axis line, and by member alignment and names."""

    line: str
    alignments: tuple[Alignment, ...]
    names: tuple[Mapping[str, str], ...]


@op("... -> ...")
class Fused(Op):
    """Operands in the order of their first readers -> the last member's result; members have one result each.

    Parameters among the operands have their gradients from the same pass as the others.
    """

    members: tuple[Member, ...] = ()

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        if not self.members:
            return self.line
        return _wired(self.members, tuple(t.shape for t in inputs), tuple(t.axes for t in inputs)).line

    def has_gradient(self, operand: int) -> bool:
        first = len({i for member in self.members for i in member.inputs}) - len(self.members) + 1
        reached = {first + len(self.members) - 1}
        for n, member in reversed(list(enumerate(self.members, start=first))):
            if n in reached:
                reached.update(i for at, i in enumerate(member.inputs) if member.op.has_gradient(at))
        return operand in reached

    def flops(self, which: str, part: Part) -> float:
        pieces = self._pieces(part)
        ahead = sum(piece.op.flops("F", piece) for piece in pieces)
        return ahead if which == "F" else ahead + sum(piece.op.flops(which, piece) for piece in pieces)

    def forward(self, k: Any, *operands: Any, at: Part) -> Any:
        return self._values(k, operands, self._pieces(at))[-1]

    def grad_inputs(self, k: Any, dy: Any, *operands: Any, at: Part, y: Any) -> Any:
        pieces = self._pieces(at)
        values = [*self._values(k, operands, pieces)[:-1], y[0]]
        slopes: dict[int, Any] = {len(values) - 1: dy}
        for n, member in reversed(list(enumerate(self.members, start=len(operands)))):
            if n not in slopes or not member.op.flows:
                continue
            asked = {"at": pieces[n - len(operands)], "y": (values[n],)}
            context = {name: asked[name] for name in sorted(member.op.asks("B"))}
            given = [values[i] for i in member.inputs]
            made = member.op.grad_inputs(k, slopes[n], *given, **context)  # type: ignore[attr-defined]
            for i, slope in zip(member.inputs, made, strict=True):
                if slope is not None:
                    slopes[i] = k.pointwise("a, b -> a + b", slopes[i], slope) if i in slopes else slope
        return tuple(slopes.get(i) for i in range(len(operands)))

    def _values(self, k: Any, operands: Sequence[Any], pieces: Sequence[Part]) -> list[Any]:
        """The operands and every member's result."""
        values = list(operands)
        for member, piece in zip(self.members, pieces, strict=True):
            context = {"at": piece} if "at" in member.op.asks("F") else {}
            values.append(member.op.forward(k, *(values[i] for i in member.inputs), **context))  # type: ignore[attr-defined]
        return values

    def _pieces(self, part: Part) -> list[Part]:
        """The part as its members see it."""
        a = part.alignment
        axes = tuple(tuple(dim[0] for dim in operand.dims) for operand in a.operands)
        wiring = _wired(self.members, tuple(a.shape(operand) for operand in a.operands), axes)
        each = zip(self.members, wiring.alignments, wiring.names, strict=True)
        return [Part(member.op, own, _Renamed(part.ranges, names)) for member, own, names in each]


class _Renamed(Mapping[str, tuple[int, int]]):
    """Ranges by other names, looked at only where they are asked for."""

    def __init__(self, ranges: Mapping[str, tuple[int, int]], names: Mapping[str, str]) -> None:
        self.ranges, self.names = ranges, names

    def __getitem__(self, axis: str) -> tuple[int, int]:
        return self.ranges[self.names[axis]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@cache
def _wired(
    members: tuple[Member, ...], shapes: tuple[tuple[int, ...], ...], axes: tuple[tuple[str, ...], ...]
) -> Wiring:
    """Axes that some member has in common are one, named as the first operand that bears it names it."""
    tensors = [Tensor(f"x{n}", shape, "float32", own) for n, (shape, own) in enumerate(zip(shapes, axes, strict=True))]
    alignments = []
    groups = _Groups()
    for n, member in enumerate(members):
        own = member.op.bind(tuple(tensors[i] for i in member.inputs), "it")
        result = own.results[0]
        made = Tensor(f"y{n}", own.shape(result), "float32", tuple(dim[0] for dim in result.dims))
        for i, operand in zip((*member.inputs, len(tensors)), (*own.operands, result), strict=True):
            for dim, (axis,) in enumerate(operand.dims):
                groups.join(("dim", i, dim), ("axis", n, axis))
        tensors.append(made)
        alignments.append(own)
    return _named(axes, tensors[-1], alignments, groups)


class _Groups:
    """Dims of arrays and axes of members, in groups of those that are one axis of the chain."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, int, Any], list[tuple[str, int, Any]]] = {}

    def join(self, one: tuple[str, int, Any], other: tuple[str, int, Any]) -> None:
        first, second = self.of.setdefault(one, [one]), self.of.setdefault(other, [other])
        if first is not second:
            first += second
            self.of.update(dict.fromkeys(second, first))


def _named(
    axes: tuple[tuple[str, ...], ...], result: Tensor, alignments: Sequence[Alignment], groups: _Groups
) -> Wiring:
    """Every group of axes by the name that the first operand gives it, longer where another has that name already."""
    found: dict[int, str] = {}
    taken: set[str] = set()
    for i, own in enumerate(axes):
        for dim, axis in enumerate(own):
            group = id(groups.of["dim", i, dim])
            found[group] = found.get(group) or fresh(axis, taken)
    names = [{axis: found[id(groups.of["axis", n, axis])] for axis in a.axes} for n, a in enumerate(alignments)]
    frozen = {own[axis] for own, a in zip(names, alignments, strict=True) for axis in a.frozen}
    last = len(axes) + len(alignments) - 1
    arrays = [(i, len(own)) for i, own in enumerate(axes)] + [(last, len(result.shape))]
    terms = [
        " ".join(
            f"{name}!" if name in frozen else name
            for name in (found[id(groups.of["dim", i, dim])] for dim in range(num_dims))
        )
        for i, num_dims in arrays
    ]
    return Wiring(f"{', '.join(terms[:-1])} -> {terms[-1]}", tuple(alignments), tuple(names))

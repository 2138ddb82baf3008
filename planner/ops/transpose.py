"""Transpose: the same elements with dims in another order, as its own axis line says; dims may divide and join.

g.transpose("heads", x, "b s (h d) -> b h s d", h=4)
"""

from __future__ import annotations

from math import prod

from castile.planner.axes import parse
from castile.planner.op import Op, Tensor, op


@op("... -> ...")
class Transpose(Op):
    """x -> y as in "b h s d -> b s (h d)"; `sizes` gives the lengths that the operand does not tell."""

    place_in_literals = True
    text: str = "... -> ..."
    sizes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        line = parse(self.text)
        sides = [sorted(o.axes) for o in (*line.operands, *line.results)]
        if len(sides) != 2 or sides[0] != sides[1] or len(set(sides[0])) < len(sides[0]):
            raise ValueError(f"transpose: {self.text!r} should name the same axes on both sides, each of them once")
        strange = [axis for axis, _ in self.sizes if axis not in sides[0]]
        if strange:
            raise ValueError(f"transpose: {self.text!r} has no axis {strange[0]!r}")

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        return self.text

    def given_extents(self, inputs: tuple[Tensor, ...]) -> dict[str, int]:
        return dict(self.sizes)

    def forward(self, k, x, *, at):
        return self._moved(k, x, at, at.alignment.operands[0], at.alignment.results[0])

    def grad_inputs(self, k, dy, x, *, at):
        return (self._moved(k, dy, at, at.alignment.results[0], at.alignment.operands[0]),)

    def _moved(self, k, x, at, of, to):
        lengths = {axis: hi - lo for axis, (lo, hi) in at.ranges.items()}
        dims = tuple(of.axes.index(axis) for axis in to.axes)
        shape = tuple(prod(lengths[axis] for axis in dim) for dim in to.dims)
        return k.rearrange(x, apart=tuple(lengths[axis] for axis in of.axes), dims=dims, shape=shape)

    @staticmethod
    def layer(g, name: str, x: Tensor, line: str, **sizes: int) -> Tensor:
        """Add a transposition to graph `g`: g.transpose("turned", x, "b s d -> b d s")."""
        return g.apply(Transpose(line, tuple(sorted(sizes.items()))), name, x)

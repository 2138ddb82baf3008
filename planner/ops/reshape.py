"""Reshape: the same elements in the same order under other dims, as its own axis line says."""

from __future__ import annotations

from castile.planner.axes import parse
from castile.planner.op import Op, Tensor, op


@op("... -> ...")
class Reshape(Op):
    """x -> y as in "b c h w -> b (c h w)"; `sizes` gives the lengths that the operand does not tell.

    An axis of one element may be new: "b -> b o" with o=1.
    """

    place_in_literals = True
    text: str = "... -> ..."
    sizes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        line = parse(self.text)
        if len(line.operands) != 1 or len(line.results) != 1:
            raise ValueError(f"reshape: {self.text!r} should have one operand and one result")
        (x,), (y,), one = line.operands, line.results, {axis for axis, size in self.sizes if size == 1}
        if x.axes != tuple(axis for axis in y.axes if axis in x.axes or axis not in one):
            raise ValueError(f"reshape: {self.text!r} should name the same axes in the same order on both sides; "
                             "only one whose length is given as 1 may be new")  # fmt: skip
        if () in x.dims + y.dims:
            raise ValueError(f"reshape: {self.text!r} should name every dim, as in 'b -> b o' with o=1")
        strange = [axis for axis, _ in self.sizes if axis not in y.axes]
        if strange:
            raise ValueError(f"reshape: {self.text!r} has no axis {strange[0]!r}")

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        return self.text

    def given_extents(self, inputs: tuple[Tensor, ...]) -> dict[str, int]:
        return dict(self.sizes)

    def forward(self, k, x, *, at):
        return k.reshape(x, shape=at.writes(0).shape)

    def grad_inputs(self, k, dy, x):
        return (k.reshape(dy, shape=x.shape),)

    @staticmethod
    def layer(g, name: str, x: Tensor, line: str, **sizes: int) -> Tensor:
        """Add a reshape to graph `g`: g.reshape("flat", x, "b c h w -> b (c h w)"), or back with c=16, h=4.

        A dim of one element is made by g.reshape("column", x, "b -> b o", o=1), and left out again by g.sum.
        """
        return g.apply(Reshape(line, tuple(sorted(sizes.items()))), name, x)

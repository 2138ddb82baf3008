"""Slice: a range of one dim of an array.

A part of the result reads of the operand only what it needs; the gradient is zero where nobody reads.
"""

from __future__ import annotations

from castile.planner.axes import fresh, nonnegative_dim
from castile.planner.op import Op, Part, Tensor, op
from castile.runtime.region import Box


@op("... -> ...")
class Slice(Op):
    """x -> the elements `start` to `stop` - 1 of its dim `dim`; x may be a parameter."""

    costless = ("start", "stop")
    dim: int = 0
    start: int = 0
    stop: int = 1

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        x = inputs[0]
        if not 0 <= self.dim < len(x.shape):
            raise ValueError(f"slice: {x.name!r} of shape {x.shape} has no dim {self.dim}")
        if not 0 <= self.start < self.stop <= x.shape[self.dim]:
            have = f"dim {self.dim} of {x.name!r}, {x.shape[self.dim]} long"
            raise ValueError(f"slice: {self.start} to {self.stop} should be a range of {have}, and not empty")
        whole = fresh(x.axes[self.dim], set(x.axes))
        axes = (*x.axes[: self.dim], whole + "!", *x.axes[self.dim + 1 :])
        return f"{'*' * x.param}{' '.join(axes)} -> {' '.join(x.axes)}"

    def given_extents(self, inputs: tuple[Tensor, ...]) -> dict[str, int]:
        return {inputs[0].axes[self.dim]: self.stop - self.start}

    def reads(self, operand: int, part: Part) -> Box:
        box = part.writes(0)
        return box.along(self.dim, box.lo[self.dim] + self.start, box.hi[self.dim] + self.start)

    def forward(self, k, x):
        return k.copy(x)

    def grad_inputs(self, k, dy, x, *, at):
        return () if at.alignment.operands[0].param else (dy,)

    def grad_params(self, k, dy, x, *, at):
        return (dy,) if at.alignment.operands[0].param else ()

    @staticmethod
    def layer(g, name: str, x: Tensor, dim: int, start: int, stop: int) -> Tensor:
        """Add a range of a dim to graph `g`; a negative dim counts from the last."""
        return g.apply(Slice(nonnegative_dim(dim, len(x.shape)), start, stop), name, x)

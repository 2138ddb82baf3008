"""Pad: elements of a constant before and after a dim; they have no gradient.

A part of the result reads what it has of the operand, which may be nothing.
"""

from __future__ import annotations

from castile.planner.axes import fresh, nonnegative_dim
from castile.planner.op import Op, Part, Tensor, op
from castile.planner.ops.concat import within
from castile.runtime.region import Box


@op("... -> ...")
class Pad(Op):
    """x [..., n, ...] -> [..., before + n + after, ...], along dim `dim`; what is new is `value`."""

    dim: int = 0
    before: int = 0
    after: int = 0
    value: float = 0.0

    def __post_init__(self) -> None:
        if min(self.before, self.after) < 0:
            raise ValueError(f"pad: before and after should be at least 0, got {self.before} and {self.after}")

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        x = inputs[0]
        if not 0 <= self.dim < len(x.shape):
            raise ValueError(f"pad: {x.name!r} of shape {x.shape} has no dim {self.dim}")
        own = fresh(x.axes[self.dim], set(x.axes))
        return f"{' '.join((*x.axes[: self.dim], own + '!', *x.axes[self.dim + 1 :]))} -> {' '.join(x.axes)}"

    def given_extents(self, inputs: tuple[Tensor, ...]) -> dict[str, int]:
        x = inputs[0]
        return {x.axes[self.dim]: self.before + x.shape[self.dim] + self.after}

    def reads(self, operand: int, part: Part) -> Box:
        box, length = part.writes(0), part.whole(0)[self.dim]
        first, last = (within(end - self.before, length) for end in (box.lo[self.dim], box.hi[self.dim]))
        return box.along(self.dim, first, last)

    def _ends(self, at: Part) -> tuple[int, int]:
        """How many elements of a part stand before what it has of the operand, and after that."""
        own, there = at.writes(0), at.reads(0)
        if there.lo[self.dim] >= there.hi[self.dim]:
            return own.shape[self.dim], 0
        first, last = (end + self.before for end in (there.lo[self.dim], there.hi[self.dim]))
        return first - own.lo[self.dim], own.hi[self.dim] - last

    def forward(self, k, x, *, at):
        before, after = self._ends(at)
        parts = [self._constant(k, x, at, n) if n else None for n in (before, after)]
        parts.insert(1, x if x.shape[self.dim] else None)
        there = [part for part in parts if part is not None]
        return k.concat(*there, dim=self.dim) if len(there) > 1 else k.copy(there[0])

    def _constant(self, k, x, at: Part, length: int):
        shape = at.writes(0).shape
        zeros = k.zero(shape=(*shape[: self.dim], length, *shape[self.dim + 1 :]), dtype=str(x.dtype))
        return k.pointwise("x -> x + value", zeros, value=self.value) if self.value else zeros

    def grad_inputs(self, k, dy, x, *, at):
        if not x.shape[self.dim]:
            return (None,)
        before, _ = self._ends(at)
        return (k.cut(dy, dim=self.dim, start=before, stop=before + x.shape[self.dim]),)

    @staticmethod
    def layer(g, name: str, x: Tensor, dim: int, before: int = 0, after: int = 0, value: float = 0.0) -> Tensor:
        """Add elements of a constant at the ends of a dim to graph `g`; a negative dim counts from the last."""
        return g.apply(Pad(nonnegative_dim(dim, len(x.shape)), before, after, value), name, x)

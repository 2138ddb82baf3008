"""Concat: arrays side by side along one dim.

A part of the result reads of each operand what it needs, which may be nothing.
"""

from __future__ import annotations

from castile.planner.axes import fresh, nonnegative_dim
from castile.planner.op import Op, Part, Tensor, op
from castile.runtime.region import Box


@op("..., ... -> ...")
class Concat(Op):
    """x [..., m, ...], y [..., n, ...], ... -> [..., m + n + ..., ...]; they differ in dim `dim` only."""

    dim: int = 0

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        ranks = {len(t.shape) for t in inputs}
        if len(ranks) != 1 or not 0 <= self.dim < min(ranks):
            shapes = ", ".join(f"{t.name!r} {t.shape}" for t in inputs)
            raise ValueError(f"concat: {shapes} should have the same number of dims, and a dim {self.dim}")
        axes = inputs[0].axes
        return f"{', '.join(self._term(t.param, n, axes) for n, t in enumerate(inputs))} -> {' '.join(axes)}"

    def _term(self, param: bool, number: int, axes: tuple[str, ...]) -> str:
        """An operand, which has an axis of its own along the dim."""
        own = fresh(f"{axes[self.dim]}_{number}", set(axes)) + "!"
        return "*" * param + " ".join((*axes[: self.dim], own, *axes[self.dim + 1 :]))

    def given_extents(self, inputs: tuple[Tensor, ...]) -> dict[str, int]:
        return {inputs[0].axes[self.dim]: sum(t.shape[self.dim] for t in inputs)}

    def reads(self, operand: int, part: Part) -> Box:
        a, own = part.alignment, part.alignment.operands[operand]
        box = part.shard(own)
        # Where an operand begins: its own axis is all that it bears along the dim.
        offset = sum([a.extents[o.dims[self.dim][0]] for o in a.operands[:operand]])
        length = a.extents[own.dims[self.dim][0]]
        first, last = (within(end - offset, length) for end in part.range(a.results[0].dims[self.dim][0]))
        return box.along(self.dim, first, last)

    def forward(self, k, *xs):
        there = [x for x in xs if x.shape[self.dim] > 0]
        return k.concat(*there, dim=self.dim) if len(there) > 1 else k.copy(there[0])

    def grad_inputs(self, k, dy, *xs, at):
        return self._pieces(k, dy, xs, at, False)

    def grad_params(self, k, dy, *xs, at):
        return self._pieces(k, dy, xs, at, True)

    def _pieces(self, k, dy, xs, at, params: bool):
        found, start = [], 0
        for x, operand in zip(xs, at.alignment.operands, strict=True):
            stop = start + x.shape[self.dim]
            if operand.param == params:
                found.append(k.cut(dy, dim=self.dim, start=start, stop=stop) if stop > start else None)
            start = stop
        return tuple(found)

    @staticmethod
    def layer(g, name: str, dim: int, *xs: Tensor) -> Tensor:
        """Add tensors side by side along a dim to graph `g`; a negative dim counts from the last."""
        if len(xs) < 2:
            raise ValueError(f"{name}: concat takes two tensors or more, got {len(xs)}")
        return g.apply(Concat(nonnegative_dim(dim, len(xs[0].shape))), name, *xs)


def within(at, length: int):
    """The nearest number from 0 to a length, by arithmetic: of arrays too."""
    at = at * (at > 0)
    return at - (at - length) * (at > length)

"""Mean over some dims, or of all elements."""

from __future__ import annotations

from math import prod

from castile.planner.families.reduction import Reduction
from castile.planner.op import Part, op


@op("... -> ", flops_per_point=1)
class Mean(Reduction):
    """x [...] -> the means over `dims`, without these; () where no dims are given.

    A mean is over the whole's dims, so the means of pieces add up.
    """

    dims: tuple[int, ...] | None = None

    def _count(self, at: Part) -> float:
        shape = at.whole(0)
        return float(prod(shape[dim] for dim in self.gone(len(shape))))

    def forward(self, k, x, *, at):
        return k.pointwise("x -> x / n", k.sum_over(x, dims=self.gone(x.ndim)), n=self._count(at))

    def grad_inputs(self, k, dy, x, *, at):
        share = k.pointwise("d -> d / n", dy, n=self._count(at))
        return (k.expand(share, shape=x.shape, dims=self.gone(x.ndim)),)

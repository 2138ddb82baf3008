"""Sum over some dims, or of all elements."""

from __future__ import annotations

from castile.planner.families.reduction import Reduction
from castile.planner.op import op


@op("... -> ", flops_per_point=1)
class Sum(Reduction):
    """x [...] -> the sums over `dims`, without these; () where no dims are given."""

    dims: tuple[int, ...] | None = None

    def forward(self, k, x):
        return k.sum_over(x, dims=self.gone(x.ndim))

    def grad_inputs(self, k, dy, x):
        return (k.expand(dy, shape=x.shape, dims=self.gone(x.ndim)),)

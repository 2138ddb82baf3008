"""Largest element over some dims, or of all."""

from __future__ import annotations

from castile.planner.families.reduction import Reduction
from castile.planner.op import op


@op("... d! -> ...", flops_per_point=1)
class Max(Reduction):
    """x [...] -> the maxima over `dims`, without these; () where no dims are given.

    Elements that are equally large share the gradient evenly. The dims may not be split: maxima do not add up.
    """

    dims: tuple[int, ...] | None = None
    mark = "!"

    def forward(self, k, x):
        return k.max_over(x, dims=self.gone(x.ndim))

    def grad_inputs(self, k, dy, x, *, y):
        kept = self.kept(x.shape)
        top, slope = (k.reshape(a, shape=kept) for a in (y[0], dy))
        count = k.sum_pointwise("x, y -> where(x == y, 1, 0)", x, top, dims=self.gone(x.ndim))
        share = k.pointwise("d, n -> d / n", slope, k.reshape(count, shape=kept))
        return (k.pointwise("d, x, y -> where(x == y, d, 0)", share, x, top),)

"""Statistics of a batch (Ioffe and Szegedy, 2015): each channel's means of x and its square, over samples and places.

They are sums of what pieces of the batch give, so that they are those of the whole batch under every plan.
"""

from __future__ import annotations

from math import prod

from castile.planner.op import Op, Part, op


@op("b c ... -> m! c", flops_per_point=2)
class BatchMoments(Op):
    """x [b, c, ...] -> [2, c]: the means of x and of its square, in float64.

    Deviations come from the difference of two means, which is why these are wide: see the kernel's definition.
    """

    def extents(self, known: dict[str, int]) -> dict[str, int]:
        return {"m": 2}

    def _scale(self, at: Part) -> float:
        shape = at.whole(0)
        return shape[1] / prod(shape)

    def forward(self, k, x, *, at):
        return k.moments(x, scale=self._scale(at))

    def grad_inputs(self, k, dm, x, *, at):
        return (k.moments_grad(dm, x, scale=self._scale(at)),)

"""Sum of squares, a part of the norm of all gradients."""

from __future__ import annotations

from castile.planner.op import Op, op


@op("... -> ", flops_per_point=2)
class SquareSum(Op):
    """x [...] -> ()."""

    def forward(self, k, x):
        return k.square_sum(x)

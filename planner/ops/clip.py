"""Clip: multiplies a parameter's gradient by the factor that brings all gradients to the norm they may have."""

from __future__ import annotations

from castile.planner.op import Op, op


@op("..., -> ...", flops_per_point=1)
class Clip(Op):
    """gradient [...], factor () -> [...]."""

    def forward(self, k, gradient, factor):
        return k.times(gradient, factor)

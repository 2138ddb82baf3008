"""-1, 0 or 1, as an element is below zero, zero or above; it has no gradient."""

from __future__ import annotations

from castile.planner.op import Op, Tensor, op


@op("... -> ...", flops_per_point=2, flows=0)
class Sign(Op):
    """x [...] -> y [...]; a NaN stays."""

    def forward(self, k, x):
        return k.pointwise("x -> where(x > 0, 1, where(x < 0, -1, x))", x)

    @staticmethod
    def layer(g, name: str, x: Tensor) -> Tensor:
        """Add the operator to graph `g`."""
        return g.apply(Sign(), name, x)

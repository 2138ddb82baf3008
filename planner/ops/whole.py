"""Floating-point numbers as whole ones, without what is behind the point; they have no gradient."""

from __future__ import annotations

from castile.planner.op import Op, Tensor, op


@op("... -> ...", flops_per_point=1, flows=0)
class Whole(Op):
    """x [...] -> whole numbers [...], of 32 bits: what is computed of tokens and places, to look up rows by."""

    def forward(self, k, x):
        return k.whole(x)

    @staticmethod
    def layer(g, name: str, x: Tensor) -> Tensor:
        """Add the operator to graph `g`."""
        return g.apply(Whole(), name, x)

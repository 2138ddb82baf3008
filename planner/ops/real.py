"""Whole numbers as floating-point numbers of the same values, or these in another dtype; they have no gradient."""

from __future__ import annotations

from castile.planner.bodies.vocabulary import wide
from castile.planner.op import Op, Tensor, op


@op("... -> ...", flops_per_point=1, flows=0)
class Real(Op):
    """numbers [...], whole as a rule -> the same [...] in a dtype; 32 bits hold all whole ones up to 2^24 in size."""

    dtype: str = "float32"

    def forward(self, k, x):
        return k.real(x, dtype=self.dtype)

    @staticmethod
    def layer(g, name: str, x: Tensor) -> Tensor:
        """Add to graph `g` whole numbers as numbers of its dtype, or in float32 where that has 16 bits."""
        return g.apply(Real(wide(g.dtype)), name, x)

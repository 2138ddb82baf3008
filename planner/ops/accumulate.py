"""Accumulate: gathers a parameter's gradient for its update."""

from __future__ import annotations

from castile.planner.op import Op, op


@op("... -> ...", flops_per_point=1)
class Accumulate(Op):
    """g [...] -> [...], the same."""

    def forward(self, k, g):
        return k.copy(g)

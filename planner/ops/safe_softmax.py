"""Softmax over the last dim of what may be hidden whole: a row of minus infinities alone is zeros, as in PyTorch."""

from __future__ import annotations

from castile.planner.op import op
from castile.planner.ops.softmax import Softmax


@op("... v! -> ... v!", flops_per_point=7)
class SafeSoftmax(Softmax):
    """x [..., v] -> y [..., v], numbers whose rows add up to one, or are zeros where nothing is seen."""

    def forward(self, k, x):
        # of such a row the softmax is no number
        return k.pointwise("y -> where(y == y, y, 0)", k.softmax(x))

    @staticmethod
    def layer(g, name: str, x):
        """Add a softmax over the last dim to graph `g`."""
        return g.apply(SafeSoftmax(), name, x)

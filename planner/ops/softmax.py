"""Softmax over the last dim: y = e^x / sum e^x."""

from __future__ import annotations

from castile.planner.op import Op, Tensor, op


@op("... v! -> ... v!", flops_per_point=6)
class Softmax(Op):
    """x [..., v] -> y [..., v], positive numbers whose rows add up to one."""

    def forward(self, k, x):
        return k.softmax(x)

    def grad_inputs(self, k, dy, x, *, y):
        return (k.softmax_grad(dy, y[0]),)

    @staticmethod
    def layer(g, name: str, x: Tensor) -> Tensor:
        """Add a softmax over the last dim to graph `g`."""
        return g.apply(Softmax(), name, x)

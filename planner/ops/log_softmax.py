"""Logarithm of the softmax over the last dim: y = x - log sum e^x."""

from __future__ import annotations

from castile.planner.op import Op, Tensor, op


@op("... v! -> ... v!", flops_per_point=6)
class LogSoftmax(Op):
    """x [..., v] -> y [..., v], the logarithms of numbers whose rows add up to one."""

    def forward(self, k, x):
        return k.log_softmax(x)

    def grad_inputs(self, k, dy, x, *, y):
        return (k.log_softmax_grad(dy, y[0]),)

    @staticmethod
    def layer(g, name: str, x: Tensor) -> Tensor:
        """Add the logarithm of a softmax over the last dim to graph `g`."""
        return g.apply(LogSoftmax(), name, x)

"""Rectifier: y = max(x, 0)."""

from __future__ import annotations

from castile.planner.op import Op, Tensor, op


@op("... -> ...", flops_per_point=1)
class Relu(Op):
    """x [...] -> [...]."""

    def forward(self, k, x):
        return k.relu(x)

    def grad_inputs(self, k, dy, x, *, y):
        # y is positive exactly where x is, and the next operator keeps y anyway
        return (k.relu_grad(dy, y[0]),)

    @staticmethod
    def layer(g, name: str, x: Tensor) -> Tensor:
        """Add a rectifier to graph `g`."""
        return g.apply(Relu(), name, x)

"""Sum of all elements."""

from __future__ import annotations

from castile.planner.op import Op, Tensor, op


@op("... -> ", flops_per_point=1)
class Sum(Op):
    """x [...] -> ()."""

    def forward(self, k, x):
        return k.sum_over(x, dims=tuple(range(x.ndim)))

    def grad_inputs(self, k, dy, x):
        return (k.expand(dy, shape=x.shape),)

    @staticmethod
    def layer(g, name: str, x: Tensor) -> Tensor:
        """Add the sum of everything to graph `g`."""
        return g.apply(Sum(), name, x)

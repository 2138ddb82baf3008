"""Mean squared error."""

from __future__ import annotations

from math import prod

from castile.planner.op import Op, Part, Tensor, op


@op("..., ... -> ", flops_per_point=3)
class Mse(Op):
    """x [...], target [...] -> (), the mean of (x - target)^2 over the whole batch, so that pieces' losses add up."""

    def _count(self, at: Part) -> float:
        return float(prod(at.whole(0)))

    def forward(self, k, x, target, *, at):
        total = k.sum_pointwise("x, t -> (x - t) * (x - t)", x, target, dims=tuple(range(x.ndim)))
        return k.pointwise("s -> s / n", total, n=self._count(at))

    def grad_inputs(self, k, dy, x, target, *, at):
        slope = k.pointwise("d, x, t -> d * c * (x - t)", dy, x, target, c=2 / self._count(at))
        return slope, k.pointwise("d -> -d", slope)

    @staticmethod
    def layer(g, name: str, x: Tensor, target: Tensor) -> Tensor:
        """Add the mean squared error to graph `g`."""
        return g.apply(Mse(), name, x, target)

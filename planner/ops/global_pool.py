"""Mean over all places of each channel (Lin, Chen and Yan, 2014)."""

from __future__ import annotations

from math import prod

from castile.planner.op import Op, Part, Tensor, op


@op("b c ... -> b c", flops_per_point=1)
class GlobalPool(Op):
    """x [b, c, ...] -> [b, c]. Pieces of the places divide by the whole's number, so their results add up."""

    def _scale(self, at: Part) -> float:
        return 1 / prod(at.whole(0)[2:])

    def forward(self, k, x, *, at):
        return k.global_pool(x, scale=self._scale(at))

    def grad_inputs(self, k, dy, x, *, at):
        return (k.global_pool_grad(dy, shape=x.shape, scale=self._scale(at)),)

    @staticmethod
    def layer(g, name: str, x: Tensor) -> Tensor:
        """Add the mean over all places to graph `g`."""
        return g.apply(GlobalPool(), name, x)

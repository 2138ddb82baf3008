"""Binary cross-entropy with logits."""

from __future__ import annotations

from math import prod

from castile.planner.op import Op, Part, Tensor, op

# Of -t log s(z) - (1 - t) log(1 - s(z)), s the sigmoid, written so that nothing overflows.
LOSS = "z, t -> maximum(z, 0) - z * t + log1p(exp(-abs(z)))"


@op("..., ... -> ", flops_per_point=18)
class Bce(Op):
    """logits [...], target [...] (probabilities, or 0 and 1) -> (), the mean over all elements of the whole batch.

    The losses of pieces add up.
    """

    # beyond these the loss has no lower bound
    shares = (1,)

    def _count(self, at: Part) -> float:
        return float(prod(at.whole(0)))

    def forward(self, k, logits, target, *, at):
        total = k.sum_pointwise(LOSS, logits, target, dims=tuple(range(logits.ndim)))
        return k.pointwise("s -> s / n", total, n=self._count(at))

    def grad_inputs(self, k, dy, logits, target, *, at):
        n = self._count(at)
        slope = k.pointwise("d, z, t -> d * (sigmoid(z) - t) / n", dy, logits, target, n=n)
        return slope, k.pointwise("d, z -> -d * z / n", dy, logits, n=n)

    @staticmethod
    def layer(g, name: str, logits: Tensor, target: Tensor) -> Tensor:
        """Add the mean binary cross-entropy to graph `g`."""
        return g.apply(Bce(), name, logits, target)

"""Balance: the auxiliary loss that spreads tokens evenly over experts (Lepikhin et al., 2021; Fedus et al., 2022).

It does not know what it weighs in the whole loss.
"""

from __future__ import annotations

from castile.planner.op import Op, Part, Tensor, op


@op("b s! e, b s! k! -> ", flops_per_point=1)
class Balance(Op):
    """probs [b, s, e], experts [b, s, k] of `route` -> (), the mean over samples of e * sum over experts of f p.

    f is the share of a sample's tokens whose first choice is the expert, p its mean probability; it is 1 where all
    experts are alike. As in GShard a sample is the group; only p has a gradient.
    """

    place_in_literals = True

    def flops(self, which: str, part: Part) -> float:
        return super().flops(which, part) / part.extent("k")

    def _shares(self, k, probs, experts, at: Part):
        e0, e1 = at.range("e")
        return k.expert_share(experts, num_experts=e1 - e0, first_expert=e0, dtype=probs.dtype)

    def _scale(self, at: Part) -> float:
        return at.extent("e") / (at.extent("s") * at.extent("b"))

    def forward(self, k, probs, experts, *, at):
        shares, sums = self._shares(k, probs, experts, at), k.sum_over(probs, dims=(1,))
        return k.sum_pointwise("f, p -> f * p * c", shares, sums, dims=(0, 1), c=self._scale(at))

    def grad_inputs(self, k, dy, probs, experts, *, at):
        slope = k.pointwise("f, d -> f * d * c", self._shares(k, probs, experts, at), dy, c=self._scale(at))
        return k.expand(slope, shape=probs.shape, dims=(1,)), None

    @staticmethod
    def layer(g, name: str, route: str) -> Tensor:
        """Add to graph `g` the loss of the node named `route`."""
        return g.apply(Balance(), name, g.tensors[f"{route}:probs"], g.tensors[f"{route}:experts"])

"""Route: a gate chooses for each token the experts that are to work on it (Shazeer et al., 2017), as in GShard
(Lepikhin et al., 2021): each expert takes in so many tokens of a sample, and those that come after have no place.

It does not know the experts: `dispatch` and `combine` move tokens to them and back, `balance` evens out their loads.
"""

from __future__ import annotations

from math import ceil

from castile.planner.op import Op, Part, Tensor, op


@op(
    "b s! e! -> b s! k!, b s! e!, b s! k!, b s! k!",
    flops_per_point=8,
    results=("", "probs", "experts", "slots"),
    flows=2,
)
class Route(Op):
    """logits [b, s, e] -> gates [b, s, k], probs [b, s, e], experts and slots [b, s, k] (int32).

    probs are the softmax of the logits, gates the k largest of them, largest first; with `normalise` these add up to
    one. A slot is the place in the queue of its expert and sample, first choices before second ones, in the order of
    the tokens; -1 for who comes after `capacity` others. The capacity belongs to the model: a sample may not be split.
    """

    k: int = 2
    capacity: int = 1
    normalise: bool = True

    def __post_init__(self) -> None:
        if self.k < 1 or self.capacity < 1:
            raise ValueError(f"route: k and capacity should be at least 1, got {self.k} and {self.capacity}")

    def flops(self, which: str, part: Part) -> float:
        return super().flops(which, part) / self.k

    def forward(self, k, logits):
        probs = k.softmax(logits)
        gates, experts = k.top_k(probs, count=self.k)
        slots = k.queue(experts, num_experts=logits.shape[2], capacity=self.capacity)
        if self.normalise:
            gates = k.pointwise("g, t -> g / t", gates, self._total(k, gates))
        return gates, probs, experts, slots

    def grad_inputs(self, k, dy, logits, *, y):
        d_gates, d_probs = dy
        gates, probs, experts, _ = y
        if self.normalise:
            total = self._total(k, k.pick(probs, experts))
            along = self._total(k, k.pointwise("d, g -> d * g", d_gates, gates))
            d_gates = k.pointwise("d, a, t -> (d - a) / t", d_gates, along, total)
        chosen = k.pick_grad(d_gates, experts, size=logits.shape[2])
        return (k.softmax_grad(k.add(chosen, d_probs), probs),)

    @staticmethod
    def _total(k, gates):
        return k.reshape(k.sum_over(gates, dims=(2,)), shape=(*gates.shape[:2], 1))

    @staticmethod
    def layer(g, name: str, logits: Tensor, k: int = 2, factor: float = 1.25, normalise: bool | None = None) -> Tensor:
        """Add a routing to graph `g`; probs, experts and slots are the tensors `name:probs`, `name:experts`, ...

        factor      how many tokens of a sample an expert can take, over those it would if all had the same load
        normalise   by default where k is more than 1: a single gate would have no gradient
        """
        _, tokens, experts = logits.shape
        capacity = max(1, ceil(min(tokens, factor * k * tokens / experts)))
        return g.apply(Route(k, capacity, k > 1 if normalise is None else normalise), name, logits)

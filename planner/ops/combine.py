"""Combine: what experts made of tokens comes back to them, weighted by their gates.

It does not know what experts do.
"""

from __future__ import annotations

from castile.planner.op import Op, Part, Tensor, op


@op("e b c d, b s k, b s k, b s k -> b s d", flops_per_point=2)
class Combine(Op):
    """y [e, b, c, d], gates, experts and slots [b, s, k] of `route` -> [b, s, d].

    A token is the sum of its choices' places times their gates; a choice without a place counts nothing.
    """

    place_in_literals = True

    def flops(self, which: str, part: Part) -> float:
        # a choice has one place among all
        return super().flops(which, part) / (part.extent("e") * part.extent("c"))

    def _first(self, at: Part) -> dict[str, int]:
        return {"first_expert": at.range("e")[0], "first_slot": at.range("c")[0]}

    def forward(self, k, y, gates, experts, slots, *, at):
        return k.combine(y, experts, slots, gates, **self._first(at))

    def grad_inputs(self, k, dy, y, gates, experts, slots, *, at):
        sizes = {"num_experts": y.shape[0], "capacity": y.shape[2]}
        d_experts = k.dispatch(dy, experts, slots, gates, **sizes, **self._first(at))
        return d_experts, k.gate_grad(dy, y, experts, slots, **self._first(at)), None, None

    @staticmethod
    def layer(g, name: str, y: Tensor, route: str) -> Tensor:
        """Add to graph `g` what brings tokens back from the experts that the node named `route` chose."""
        return g.apply(Combine(), name, y, g.tensors[route], g.tensors[f"{route}:experts"], g.tensors[f"{route}:slots"])

"""Dispatch: tokens move to their places in the queues of experts.

Where samples are split before and experts behind, what moves between them is an all-to-all, by the law of the axes.
"""

from __future__ import annotations

from castile.planner.op import Op, Part, Tensor, op


@op("b s d, b s k, b s k -> e b c d")
class Dispatch(Op):
    """x [b, s, d], experts and slots [b, s, k] of `route` -> [e, b, c, d], zeros in places that nobody takes.

    e experts with c places for a sample each.
    """

    place_in_literals = True
    e: int = 1
    c: int = 1

    def _block(self, at: Part) -> dict[str, int]:
        (e0, e1), (c0, c1) = at.range("e"), at.range("c")
        return {"num_experts": e1 - e0, "capacity": c1 - c0, "first_expert": e0, "first_slot": c0}

    def forward(self, k, x, experts, slots, *, at):
        return k.dispatch(x, experts, slots, **self._block(at))

    def grad_inputs(self, k, dy, x, experts, slots, *, at):
        first = {"first_expert": at.range("e")[0], "first_slot": at.range("c")[0]}
        return k.combine(dy, experts, slots, **first), None, None

    @staticmethod
    def layer(g, name: str, x: Tensor, route: str) -> Tensor:
        """Add to graph `g` what brings tokens to the experts that the node named `route` chose."""
        node = g.nodes[route]
        experts = node.alignment.extents["e"]
        return g.apply(
            Dispatch(experts, node.op.capacity), name, x, g.tensors[f"{route}:experts"], g.tensors[f"{route}:slots"]
        )

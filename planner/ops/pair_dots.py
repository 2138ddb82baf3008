"""Pair dots: the products of all pairs of a sample's vectors, the interaction of DLRM (Naumov et al., 2019)."""

from __future__ import annotations

from castile.planner.op import Op, Part, Tensor, op


@op("b f! d -> b p!")
class PairDots(Op):
    """x [b, f, d] -> [b, f (f - 1) / 2]: the products of vectors 1 and 0, 2 and 0, 2 and 1, 3 and 0, ..."""

    def extents(self, known: dict[str, int]) -> dict[str, int]:
        if known["f"] < 2:
            raise ValueError(f"of {known['f']} vectors there are no pairs")
        return {"p": known["f"] * (known["f"] - 1) // 2}

    def flops(self, which: str, part: Part) -> float:
        of = {axis: hi - lo for axis, (lo, hi) in part.ranges.items()}
        return 2.0 * of["b"] * of["p"] * of["d"] * (1 if which == "F" else 2)

    def forward(self, k, x):
        return k.pair_dots(x)

    def grad_inputs(self, k, dy, x):
        return (k.pair_dots_grad(dy, x),)

    @staticmethod
    def layer(g, name: str, x: Tensor) -> Tensor:
        """Add the products of all pairs of vectors to graph `g`."""
        return g.apply(PairDots(), name, x)

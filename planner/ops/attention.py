"""Scaled dot-product attention of several heads (Vaswani et al., 2017), computed without keeping the scores
(Dao et al., 2022): only the log-sum-exp of each row of scores is kept for the gradient.

It does not know where keys come from: a split of the queries reads the keys it needs, by the law of its operands.
"""

from __future__ import annotations

from math import sqrt

from castile.planner.op import Op, Part, Tensor, op
from castile.runtime.region import Box


@op("b s (h d!), b t! (h d!), b t! (h d!) -> b s (h d!), b h s", flops_per_point=4, results=("", "lse"))
class Attention(Op):
    """q [b, s, h*d], keys and values [b, t, h*d] -> y [b, s, h*d], lse [b, h, s]; h heads.

    causal: query i sees keys 0 to i.
    """

    h: int = 1
    causal: bool = False

    def reads(self, operand: int, part: Part) -> Box:
        box = super().reads(operand, part)
        if operand == 0 or not self.causal:
            return box
        seen = min(part.range("s")[1], part.extent("t"))
        return Box(box.lo, (box.hi[0], seen, box.hi[2]))

    def flops(self, which: str, part: Part) -> float:
        (b0, b1), (s0, s1), (h0, h1) = (part.range(axis) for axis in "bsh")
        keys = part.extent("t")
        pairs = sum(min(i + 1, keys) for i in range(s0, s1)) if self.causal else (s1 - s0) * keys
        # the gradient recomputes the scores and makes four more products of the same size, forward makes two
        products = 1.0 if which == "F" else 2.5
        return products * self.flops_per_point * (b1 - b0) * (h1 - h0) * part.extent("d") * pairs

    def _local(self, at: Part) -> dict[str, object]:
        h0, h1 = at.range("h")
        first = at.range("s")[0] if self.causal else 0
        return {"heads": h1 - h0, "causal": self.causal, "offset": first, "scale": 1 / sqrt(at.extent("d"))}

    def forward(self, k, q, keys, values, *, at):
        return k.attention(q, keys, values, **self._local(at))

    def grad_inputs(self, k, dy, q, keys, values, *, at, y):
        out, lse = y
        return k.attention_grad(dy, q, keys, values, out, lse, **self._local(at))

    @staticmethod
    def layer(g, name: str, q: Tensor, keys: Tensor, values: Tensor, heads: int, causal: bool = False) -> Tensor:
        """Add attention to graph `g`; the last dim of all three holds the heads side by side."""
        return g.apply(Attention(heads, causal), name, q, keys, values)

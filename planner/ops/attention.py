"""Scaled dot-product attention of several heads (Vaswani et al., 2017), computed without keeping the scores
(Dao et al., 2022): only the log-sum-exp of each row of scores is kept for the gradient. Heads of queries may share
keys and values (Ainslie et al., 2023).

It does not know where keys come from: a split of the queries reads the keys it needs, by the law of its operands.
"""

from __future__ import annotations

from math import sqrt

from castile.planner.op import Op, Part, Tensor, op
from castile.runtime.region import Box


@op("b s (h d!), b t! (h d!), b t! (h d!) -> b s (h d!), b h s", flops_per_point=4, results=("", "lse"))
class Attention(Op):
    """q [b, s, h*r*d], keys and values [b, t, h*d] -> y like q, lse [b, h*r, s]; h heads of keys.

    causal: query i sees keys 0 to i. r neighbouring heads of queries share a head of keys; only h may be cut.
    """

    place_in_literals = True
    h: int = 1
    causal: bool = False
    r: int = 1

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        if self.r == 1:
            return self.line
        return "b s (h r! d!), b t! (h d!), b t! (h d!) -> b s (h r! d!), b (h r!) s"

    def follows(self, operand: int) -> bool:
        return operand == 0 or not self.causal

    def reads(self, operand: int, part: Part) -> Box:
        box = super().reads(operand, part)
        return box if self.follows(operand) else box.along(1, 0, min(part.range("s")[1], part.extent("t")))

    def flops(self, which: str, part: Part) -> float:
        # the gradient recomputes the scores and makes four more products of the same size, forward makes two
        products = 1.0 if which == "F" else 2.5
        return products * self.flops_per_point * part.extent("d") * self._scores(part)

    def looks(self, which: str, part: Part) -> int:
        return self._scores(part)

    def _scores(self, part: Part) -> int:
        """How many scores a part makes, without those that are masked."""
        (b0, b1), (s0, s1), (h0, h1) = (part.range(axis) for axis in "bsh")
        keys = part.extent("t")
        pairs = _num_pairs(s1, keys) - _num_pairs(s0, keys) if self.causal else (s1 - s0) * keys
        return (b1 - b0) * (h1 - h0) * self.r * pairs

    def _local(self, at: Part) -> dict[str, object]:
        h0, h1 = at.range("h")
        first = at.range("s")[0] if self.causal else 0
        return {"heads": (h1 - h0) * self.r, "causal": self.causal, "offset": first, "scale": 1 / sqrt(at.extent("d"))}

    def forward(self, k, q, keys, values, *, at):
        return k.attention(q, keys, values, **self._local(at))

    def grad_inputs(self, k, dy, q, keys, values, *, at, y):
        out, lse = y
        return k.attention_grad(dy, q, keys, values, out, lse, **self._local(at))

    @staticmethod
    def layer(
        g,
        name: str,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        heads: int,
        causal: bool = False,
        kv_heads: int | None = None,
    ) -> Tensor:
        """Add attention to graph `g`; the last dims hold the heads side by side, of keys and values `kv_heads`."""
        groups = kv_heads or heads
        if groups < 1 or heads % groups:
            raise ValueError(f"{name}: {heads} heads cannot share {groups} heads of keys evenly")
        return g.apply(Attention(groups, causal, heads // groups), name, q, keys, values)


def _num_pairs(queries: int, keys: int) -> int:
    """How many keys so many queries see together, each those up to its own position."""
    early = min(queries, keys)
    return early * (early + 1) // 2 + (queries - early) * keys

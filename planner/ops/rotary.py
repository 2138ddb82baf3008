"""Rotary position embedding: pairs of each head's features turned by an angle that grows with the position (Su et al.,
2021), so that products of queries and keys depend on their distance.

It knows no attention: queries and keys pass through it before.
"""

from __future__ import annotations

from castile.planner.op import Op, Tensor, op


@op("... s (h d!) -> ... s (h d!)", flops_per_point=3)
class Rotary(Op):
    """x [..., s, h*d] -> the same shape; h heads of an even width d, positions counted over the whole sequence.

    Pair j of d/2 turns by position * base**(-2j/d). Pairs are elements j and j + d/2 of a head (as in Llama's usual
    weights), or neighbours where `interleaved` (as in the paper).
    """

    place_in_literals = True
    h: int = 1
    base: float = 10000.0
    interleaved: bool = False

    def __post_init__(self) -> None:
        if self.h < 1 or self.base <= 0:
            raise ValueError(f"rotary: heads {self.h} and base {self.base} should be positive")

    def _local(self, at) -> dict[str, object]:
        first, last = at.range("h")
        return {"heads": last - first, "base": self.base, "offset": at.range("s")[0], "interleaved": self.interleaved}

    def forward(self, k, x, *, at):
        return k.rotary(x, **self._local(at), inverse=False)

    def grad_inputs(self, k, dy, x, *, at):
        # a rotation's transpose is its inverse
        return (k.rotary(dy, **self._local(at), inverse=True),)

    @staticmethod
    def layer(g, name: str, x: Tensor, heads: int, base: float = 10000.0, interleaved: bool = False) -> Tensor:
        """Add a rotary embedding to graph `g`; x [..., s, heads*d], its last but one dim counts positions."""
        if len(x.shape) < 2 or heads < 1 or x.shape[-1] % (2 * heads):
            raise ValueError(f"{name}: the width of {x.name!r}, shape {x.shape}, is no even multiple of {heads} heads")
        return g.apply(Rotary(heads, base, interleaved), name, x)

"""Dropout: elements are left out at random, the others scaled up, so that the mean stays (Srivastava et al., 2014)."""

from __future__ import annotations

from hashlib import sha256

from castile.planner.op import Op, Part, Tensor, op


@op("..., -> ...", flops_per_point=20)
class Dropout(Op):
    """x [...], noise () (an integer, another one at each step) -> [...]: 0 with probability `rate`, or x / (1 - rate).

    Which elements are left out follows from noise, salt and their places in the whole, so it is the same for any split,
    and the gradient finds it out anew instead of keeping it. Two nodes of one salt leave out alike.
    """

    costless = ("salt",)
    place_in_literals = True
    rate: float = 0.5
    salt: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ValueError(f"dropout: the rate should be at least 0 and below 1, got {self.rate}")

    def _drop(self, k, x, noise, at: Part):
        return k.dropout(x, noise, rate=self.rate, salt=self.salt, offset=at.writes(0).lo, whole=at.whole(0))

    def forward(self, k, x, noise, *, at):
        return self._drop(k, x, noise, at)

    def grad_inputs(self, k, dy, x, noise, *, at):
        return self._drop(k, dy, noise, at), None

    @staticmethod
    def layer(g, name: str, x: Tensor, rate: float = 0.1) -> Tensor:
        """Add dropout to graph `g`, of its own by its name; a model built for evaluation leaves it out."""
        salt = int.from_bytes(sha256(name.encode()).digest()[:7], "little")
        return g.apply(Dropout(rate, salt), name, x, g.scalar("noise", "int64"))

"""Gaussian error linear unit: y = x P(X <= x) for a standard normal X (Hendrycks and Gimpel, 2016)."""

from __future__ import annotations

from castile.planner.op import Op, Tensor, op

FORMS = ("tanh", "none")


@op("... -> ...", flops_per_point=12)
class Gelu(Op):
    """x [...] -> [...]; approximate "tanh" (the usual one of language models) or "none" (exact)."""

    approximate: str = "tanh"

    def __post_init__(self) -> None:
        if self.approximate not in FORMS:
            raise ValueError(f"gelu: approximate should be one of {', '.join(FORMS)}, got {self.approximate!r}")

    def forward(self, k, x):
        return k.gelu(x, approximate=self.approximate)

    def grad_inputs(self, k, dy, x):
        return (k.gelu_grad(dy, x, approximate=self.approximate),)

    @staticmethod
    def layer(g, name: str, x: Tensor, approximate: str = "tanh") -> Tensor:
        """Add a Gaussian error linear unit to graph `g`."""
        return g.apply(Gelu(approximate), name, x)

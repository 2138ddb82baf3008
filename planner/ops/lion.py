"""Lion: steps of one size, by the sign of a mean of gradients (Chen et al., 2023)."""

from __future__ import annotations

from castile.planner.families.updates import Optimizer
from castile.planner.op import op


@op("..., ..., ..., -> ..., ...", flops_per_point=10, results=("", "mean"))
class Lion(Optimizer):
    """parameter, gradient, mean [...], rate () -> parameter, mean [...].

    `beta1` weighs the mean against the gradient for the step, `beta2` for the next mean; `decay` is the weight decay,
    apart from the gradient. Its rate is to be a third to a tenth of Adam's, its decay as many times larger.
    """

    beta1: float = 0.9
    beta2: float = 0.99
    decay: float = 0.0

    def __post_init__(self) -> None:
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= beta < 1:
                raise ValueError(f"lion: {name} should be at least 0 and below 1, got {beta}")
        if self.decay < 0:
            raise ValueError(f"lion: weight decay should be at least 0, got {self.decay}")

    def forward(self, k, w, g, m, lr, *guard):
        return k.lion(w, g, m, lr, *guard, **dict(self.settings), guarded=bool(guard))

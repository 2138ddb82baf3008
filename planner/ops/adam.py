"""Adam: a mean of gradients over the root of a mean of their squares (Kingma and Ba, 2015), as PyTorch defines it."""

from __future__ import annotations

from typing import ClassVar

from castile.planner.families.updates import Optimizer
from castile.planner.op import op


@op("..., ..., ..., ..., , -> ..., ..., ...", flops_per_point=15, results=("", "mean", "square"))
class Adam(Optimizer):
    """parameter, gradient, mean, square [...], rate (), step () -> parameter, mean, square [...].

    `decay`, the weight decay, is added to the gradient.
    """

    scalars: ClassVar[tuple[str, ...]] = ("lr", "step")
    decoupled: ClassVar[bool] = False

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.0

    def __post_init__(self) -> None:
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= beta < 1:
                raise ValueError(f"{self.name}: {name} should be at least 0 and below 1, got {beta}")
        if self.eps < 0 or self.decay < 0:
            raise ValueError(f"{self.name}: eps and decay should be at least 0, got {self.eps} and {self.decay}")
        # where no gradient ever came it is all that is divided by
        if self.eps == 0:
            raise ValueError(f"{self.name}: eps should be more than 0, or 0 is divided by 0 where gradients are 0")

    def forward(self, k, w, g, m, v, lr, step, *guard):
        settings = {**dict(self.settings), "decoupled": self.decoupled, "guarded": bool(guard)}
        return k.adam(w, g, m, v, lr, step, *guard, **settings)

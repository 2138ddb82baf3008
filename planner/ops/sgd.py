"""Stochastic gradient descent with momentum (Polyak, 1964; Nesterov, 1983), as PyTorch defines it."""

from __future__ import annotations

from castile.planner.families.updates import Optimizer
from castile.planner.op import op


@op("..., ..., ..., -> ..., ...", flops_per_point=6, results=("", "momentum"))
class Sgd(Optimizer):
    """parameter, gradient, momentum [...], rate () -> parameter, momentum [...]; `decay` is the weight decay."""

    momentum: float = 0.0
    decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"sgd: momentum should be at least 0 and below 1, got {self.momentum}")
        if self.decay < 0:
            raise ValueError(f"sgd: weight decay should be at least 0, got {self.decay}")

    def forward(self, k, w, g, m, lr, *guard):
        return k.sgd(w, g, m, lr, *guard, **dict(self.settings), guarded=bool(guard))

"""Running statistics: the moving average of each channel's mean, or of its unbiased variance, as PyTorch keeps them."""

from __future__ import annotations

from castile.planner.op import Op, op


@op("c, m! c -> c", flops_per_point=2)
class RunningMoment(Op):
    """running mean or variance [c], moments [2, c] of `count` numbers -> the new one [c]."""

    momentum: float = 0.1
    count: int = 2
    variance: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.momentum <= 1:
            raise ValueError(f"batch_norm: momentum should be from 0 to 1, got {self.momentum}")
        if self.count < 2:
            raise ValueError("batch_norm: one number a channel has no variance; give it more samples or larger images")

    def forward(self, k, old, m):
        return k.running_moment(old, m, momentum=self.momentum, count=self.count, variance=self.variance)

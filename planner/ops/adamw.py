"""AdamW: Adam with weight decay apart from the gradient (Loshchilov and Hutter, 2019), as PyTorch defines it."""

from __future__ import annotations

from typing import ClassVar

from castile.planner.op import op
from castile.planner.ops.adam import Adam


@op("..., ..., ..., ..., , -> ..., ..., ...", flops_per_point=15, results=("", "mean", "square"))
class AdamW(Adam):
    """As Adam, but each step takes rate * `decay` of the parameter from it, whatever the gradient."""

    decoupled: ClassVar[bool] = True

    decay: float = 0.01

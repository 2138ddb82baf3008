"""The scale of the loss: doubled after many good steps in a row, halved where gradients overflow."""

from __future__ import annotations

from castile.planner.op import Op, op

# Between these the scale stays: powers of two, by which nothing is rounded.
LEAST, MOST = 1.0, 2.0**24


@op(", , , -> , , ", flops_per_point=4, results=("", "streak", "taken"))
class LossScale(Op):
    """scale (), good steps in a row (), steps taken (), factor () of `unscale` -> the first three, new.

    A factor of 0 says that the step was skipped. The scale doubles after `growth` good steps in a row, which then count
    anew (dynamic loss scaling: Micikevicius et al., 2018).
    """

    growth: int = 2000

    def __post_init__(self) -> None:
        if self.growth < 1:
            raise ValueError(f"loss_scale: the scale cannot double after {self.growth} steps; give 1 or more")

    def forward(self, k, scale, streak, taken, factor):
        grows = {"growth": float(self.growth)}
        up = "where(r + 1 >= growth, minimum(2 * s, most), s)"
        line = f"s, r, f -> where(f > 0, {up}, maximum(s / 2, least))"
        renewed = k.pointwise(line, scale, streak, factor, least=LEAST, most=MOST, **grows)
        counted = k.pointwise("r, f -> where(f > 0, where(r + 1 >= growth, 0, r + 1), 0)", streak, factor, **grows)
        return renewed, counted, k.pointwise("t, f -> t + where(f > 0, 1, 0)", taken, factor)

"""Clipping by the global norm (Pascanu, Mikolov and Bengio, 2013): by what gradients are multiplied."""

from __future__ import annotations

from castile.planner.op import Op, op


@op(" -> , ", flops_per_point=3, results=("", "norm"))
class ClipFactor(Op):
    """Sum of squares of all gradients () -> factor (), at most 1, so that their norm is at most `most`; norm ()."""

    most: float = 1.0

    def forward(self, k, squares):
        return k.clip_factor(squares, most=self.most)

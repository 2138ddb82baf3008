"""Adafactor: steps scaled by factored mean squares of gradients (Shazeer and Stern, 2018), as PyTorch defines it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from castile.planner.families.updates import Optimizer
from castile.planner.op import Part, Tensor, op
from castile.runtime.region import Box


@op("..., ..., , , , -> ..., , ", flops_per_point=14, results=("", "rows", "columns"))
class Adafactor(Optimizer):
    """parameter, gradient [..., r, c], rows [..., r], columns [..., c], rate (), step () -> parameter, rows, columns.

    The state of a vector [c] is columns [c]; rows [c] stay as they are. The size of a step goes by means over the whole
    parameter: a matrix may not be split (but different ones may lie on different processors), and whoever has a piece
    of a vector reads all of it.

    beta2_decay   a step's share in the means of squares is its number to this power
    eps1, eps2    the least mean square and the least size of a parameter; 0 for eps1 is the dtype's own
    clip          the largest root of the mean square of a step before its rate
    decay         weight decay, apart from the gradient
    The rate is at most 1 / sqrt(step), times the root of the parameter's mean square.
    """

    place_in_literals = True
    scalars: ClassVar[tuple[str, ...]] = ("lr", "step")

    beta2_decay: float = -0.8
    eps1: float = 0.0
    eps2: float = 1e-3
    clip: float = 1.0
    decay: float = 0.0

    def __post_init__(self) -> None:
        if self.beta2_decay > 0:
            raise ValueError(f"adafactor: beta2_decay should be at most 0, got {self.beta2_decay}")
        if self.clip <= 0:
            raise ValueError(f"adafactor: clip should be more than 0, got {self.clip}")
        if min(self.eps1, self.eps2, self.decay) < 0:
            raise ValueError("adafactor: eps1, eps2 and decay should be at least 0")

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        axes = inputs[0].axes
        mark = "!" if len(axes) > 1 else ""
        whole, rows, columns = (
            " ".join(axis + mark for axis in self.state_axes(label, axes)) for label in self.results
        )
        return f"{whole}, {whole}, {rows}, {columns}, , -> {whole}, {rows}, {columns}"

    def state_axes(self, label: str, axes: tuple[str, ...]) -> tuple[str, ...]:
        if len(axes) < 2 or not label:
            return axes
        return axes[:-1] if label == "rows" else axes[:-2] + axes[-1:]

    def reads(self, operand: int, part: Part) -> Box:
        return Box((0,) * len(part.whole(operand)), part.whole(operand))

    def forward(self, k, w, g, rows, columns, lr, step, *guard, at):
        eps1 = self.eps1 or float(np.finfo(w.dtype).eps)
        settings = dict(self.settings) | {"eps1": eps1, "guarded": bool(guard)}
        made = k.adafactor(w, g, rows, columns, lr, step, *guard, **settings)
        own = at.writes(0)
        if own.shape == w.shape:
            return made
        return tuple(k.cut(x, dim=0, start=own.lo[0], stop=own.hi[0]) for x in made)

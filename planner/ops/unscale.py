"""Takes the loss's scale out of gradients, with clipping by the global norm, and says whether a step is taken."""

from __future__ import annotations

from math import inf

from castile.planner.op import Op, op

# The largest finite number of float32.
LARGEST = 3.4028234e38


@op(", , -> , , ", flops_per_point=8, results=("", "norm", "number"))
class Unscale(Op):
    """Sum of squares of all gradients (), the loss's scale (), steps taken () -> factor (), norm (), its number.

    The factor takes the scale out and brings the norm to `most`, as `clip_factor` does. It is 0 where a gradient is no
    finite number: then the step is skipped (Micikevicius et al., 2018).
    """

    most: float = inf

    def forward(self, k, squares, scale, taken):
        if self.most < inf:
            line = "q, s -> where(q <= top, minimum(1, most / (sqrt(q) / s + 0.000001)) / s, 0)"
            factor = k.pointwise(line, squares, scale, top=LARGEST, most=self.most)
        else:
            factor = k.pointwise("q, s -> where(q <= top, 1 / s, 0)", squares, scale, top=LARGEST)
        return factor, k.pointwise("q, s -> sqrt(q) / s", squares, scale), k.pointwise("t -> t + 1", taken)

"""Maximum over windows of rows and columns; padding never wins.

Split rows read the halo that their windows need; it knows nothing of who holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from castile.planner.families.windows import Sliding, pair
from castile.planner.op import Part, Tensor, op


@op("b c H! W! -> b c h w")
class MaxPool2d(Sliding):
    """x [b, c, H, W] -> [b, c, h, w]; the gradient goes to the first maximum of a window in row-major order."""

    kernel: tuple[int, int] = (2, 2)
    stride: tuple[int, int] = (2, 2)
    padding: tuple[int, int] = (0, 0)

    def sizes(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        return self.kernel

    def flops(self, which: str, part: Part) -> float:
        return prod(self.kernel) * part.writes(0).volume

    def looks(self, which: str, part: Part) -> int:
        # maxima of several windows are found together, and where one lies by itself
        return 0 if which == "F" else part.writes(0).volume

    def forward(self, k, x, *, at):
        return k.max_pool2d(x, kernel=self.kernel, stride=self.stride, pads=self.pads(at))

    def grad_inputs(self, k, dy, x, *, at):
        return (k.max_pool2d_grad(dy, x, kernel=self.kernel, stride=self.stride, pads=self.pads(at)),)

    @staticmethod
    def layer(
        g,
        name: str,
        x: Tensor,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, int] = 0,
    ) -> Tensor:
        """Add max pooling to graph `g`; windows lie side by side unless a stride is given."""
        return g.apply(MaxPool2d(pair(kernel), pair(kernel if stride is None else stride), pair(padding)), name, x)

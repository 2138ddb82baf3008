"""Maximum over windows of rows and columns; padding never wins.

Split rows read the halo that their windows need; it knows nothing of who holds it.
"""

from __future__ import annotations

from math import prod

from castile.planner.op import Op, Part, Tensor, op
from castile.planner.windows import Pads, count, pads, pair, window
from castile.runtime.region import Box


@op("b c H! W! -> b c h w")
class MaxPool2d(Op):
    """x [b, c, H, W] -> [b, c, h, w]; the gradient goes to the first maximum of a window in row-major order."""

    kernel: tuple[int, int] = (2, 2)
    stride: tuple[int, int] = (2, 2)
    padding: tuple[int, int] = (0, 0)

    def extents(self, known: dict[str, int]) -> dict[str, int]:
        h = count(known["H"], self.kernel[0], self.stride[0], self.padding[0])
        w = count(known["W"], self.kernel[1], self.stride[1], self.padding[1])
        return {"h": h, "w": w}

    def _windows(self, at: Part) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
        rows = window(at.range("h"), at.extent("H"), self.kernel[0], self.stride[0], self.padding[0])
        columns = window(at.range("w"), at.extent("W"), self.kernel[1], self.stride[1], self.padding[1])
        return rows, columns

    def _pads(self, at: Part) -> Pads:
        return pads(*self._windows(at))

    def reads(self, operand: int, part: Part) -> Box:
        rows, columns = self._windows(part)
        ranges = (part.range("b"), part.range("c"), rows[0], columns[0])
        return Box(tuple(lo for lo, _ in ranges), tuple(hi for _, hi in ranges))

    def flops(self, which: str, part: Part) -> float:
        return prod(self.kernel) * part.writes(0).volume

    def forward(self, k, x, *, at):
        return k.max_pool2d(x, kernel=self.kernel, stride=self.stride, pads=self._pads(at))

    def grad_inputs(self, k, dy, x, *, at):
        return (k.max_pool2d_grad(dy, x, kernel=self.kernel, stride=self.stride, pads=self._pads(at)),)

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

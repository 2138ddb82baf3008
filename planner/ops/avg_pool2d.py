"""Mean over windows of rows and columns.

Split rows read the halo that their windows need; it knows nothing of who holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from castile.planner.families.windows import Sliding, pair
from castile.planner.op import Part, Tensor, op


@op("b c H! W! -> b c h w")
class AvgPool2d(Sliding):
    """x [b, c, H, W] -> [b, c, h, w]; `padded`: the padding's zeros count, else means are of what windows see of x."""

    kernel: tuple[int, int] = (2, 2)
    stride: tuple[int, int] = (2, 2)
    padding: tuple[int, int] = (0, 0)
    padded: bool = True

    def sizes(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        return self.kernel

    def flops(self, which: str, part: Part) -> float:
        return prod(self.kernel) * part.writes(0).volume

    def _how(self, at: Part) -> dict[str, object]:
        return {"kernel": self.kernel, "stride": self.stride, "pads": self.pads(at), "padded": self.padded}

    def forward(self, k, x, *, at):
        return k.avg_pool2d(x, **self._how(at))

    def grad_inputs(self, k, dy, x, *, at):
        return (k.avg_pool2d_grad(dy, shape=x.shape, **self._how(at)),)

    @staticmethod
    def layer(
        g,
        name: str,
        x: Tensor,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, int] = 0,
        padded: bool = True,
    ) -> Tensor:
        """Add mean pooling to graph `g`; windows lie side by side unless a stride is given."""
        op = AvgPool2d(pair(kernel), pair(kernel if stride is None else stride), pair(padding), padded)
        return g.apply(op, name, x)

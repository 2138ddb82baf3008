"""Convolution over rows and columns: y[b, o] = sum over i of x[b, i] correlated with w[o, i]; stride, zero padding.

Split rows read the halo that their windows need, whatever the stride; it knows nothing of who holds it.
"""

from __future__ import annotations

from math import prod, sqrt

from castile.planner.op import Init, Op, Part, Tensor, op
from castile.planner.windows import Pads, count, pads, pair, window
from castile.runtime.region import Box


@op("b i H! W!, *o i r! s! -> b o h w", flops_per_point=2)
class Conv2d(Op):
    """x [b, i, H, W], w [o, i, r, s], optionally bias [o] -> [b, o, h, w]; stride and padding of rows and columns."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        return self.line if len(inputs) == 2 else "b i H! W!, *o i r! s!, *o -> b o h w"

    def extents(self, known: dict[str, int]) -> dict[str, int]:
        h = count(known["H"], known["r"], self.stride[0], self.padding[0])
        w = count(known["W"], known["s"], self.stride[1], self.padding[1])
        return {"h": h, "w": w}

    def _windows(self, at: Part) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
        rows = window(at.range("h"), at.extent("H"), at.extent("r"), self.stride[0], self.padding[0])
        columns = window(at.range("w"), at.extent("W"), at.extent("s"), self.stride[1], self.padding[1])
        return rows, columns

    def _pads(self, at: Part) -> Pads:
        return pads(*self._windows(at))

    def reads(self, operand: int, part: Part) -> Box:
        if operand > 0:
            return super().reads(operand, part)
        rows, columns = self._windows(part)
        ranges = (part.range("b"), part.range("i"), rows[0], columns[0])
        return Box(tuple(lo for lo, _ in ranges), tuple(hi for _, hi in ranges))

    def flops(self, which: str, part: Part) -> float:
        # the input's rows and columns are no points of their own: each output meets one window of them
        return self.flops_per_point * prod(hi - lo for axis, (lo, hi) in part.ranges.items() if axis not in "HW")

    def forward(self, k, x, w, b=None, *, at):
        y = k.conv2d(x, w, stride=self.stride, pads=self._pads(at))
        # a partial sum gets the bias from one piece only
        return k.add_bias(y, b, dim=1) if b is not None and at.first("i") else y

    def grad_inputs(self, k, dy, x, w, b=None, *, at):
        return (k.conv2d_grad_input(dy, w, shape=x.shape, stride=self.stride, pads=self._pads(at)),)

    def grad_params(self, k, dy, x, w, b=None, *, at):
        dw = k.conv2d_grad_weight(dy, x, kernel=w.shape[2:], stride=self.stride, pads=self._pads(at))
        if b is None:
            return (dw,)
        return dw, k.sum_over(dy, dims=(0, 2, 3)) if at.first("i") else None

    @staticmethod
    def layer(
        g,
        name: str,
        x: Tensor,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        bias: bool = True,
    ) -> Tensor:
        """Add a convolution with its parameters to graph `g`; weights uniform in +-1/sqrt(inputs of a window)."""
        r, s = pair(kernel)
        inputs = x.shape[1]
        init = Init("uniform", 1 / sqrt(inputs * r * s))
        params = [g.param(f"{name}.weight", (channels, inputs, r, s), ("o", "i", "r", "s"), init)]
        if bias:
            params.append(g.param(f"{name}.bias", (channels,), ("o",), Init("zeros")))
        return g.apply(Conv2d(pair(stride), pair(padding)), name, x, *params)

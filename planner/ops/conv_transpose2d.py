"""Transposed convolution: what the gradient of a convolution does to its input, as a layer (Zeiler et al., 2010).

Each element of x is spread over a window of y, times w. Split rows of y read the rows of x whose windows reach them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from castile.planner.families.convolution import check_groups, parameters
from castile.planner.families.windows import Pair, pair, reach, rows
from castile.planner.op import Op, Part, Tensor, op
from castile.runtime.region import Box

DIMS = (("h", "H", "r"), ("w", "W", "s"))


@op("b i h! w!, *i o r! s! -> b o H W", flops_per_point=2)
class ConvTranspose2d(Op):
    """x [b, i, h, w], w [i, o / g, r, s], optionally bias [o] -> [b, o, H, W], H = (h - 1) stride - 2 padding + reach.

    extra   rows and columns more at the end, which few windows reach or none
    """

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    extra: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    g: int = 1

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        i, o = ("(g i)", "(g o)") if self.g > 1 else ("i", "o")
        bias = f", *{o}" if len(inputs) == 3 else ""
        return f"b {i} h! w!, *{i} o r! s!{bias} -> b {o} H W"

    def extents(self, known: dict[str, int]) -> dict[str, int]:
        found = {}
        for n, (small, large, tap) in enumerate(DIMS):
            length, window = known[small], reach(known[tap], self.dilation[n])
            if self.stride[n] < 1 or not 0 <= self.padding[n] < window:
                words = f"padding {self.padding[n]} at least 0 and smaller than the kernel, {window}"
                raise ValueError(f"stride {self.stride[n]} should be at least 1, {words}")
            if not 0 <= self.extra[n] < max(self.stride[n], self.dilation[n]):
                raise ValueError(f"{self.extra[n]} extra elements should be fewer than the stride or the dilation")
            found[large] = (length - 1) * self.stride[n] - 2 * self.padding[n] + window + self.extra[n]
            if found[large] < 1:
                raise ValueError(f"{length} elements with padding {self.padding[n]} leave nothing")
        return found

    def _span(self, at: Part, n: int) -> tuple[Pair, Pair]:
        """Which elements of x reach a part, and how far their windows begin before it and end after it."""
        small, large, tap = DIMS[n]
        (lo, hi), stride, padding = at.range(large), self.stride[n], self.padding[n]
        window = reach(at.extent(tap), self.dilation[n])
        first = max(0, -((window - 1 - padding - lo) // stride))
        last = max(first, min(at.extent(small), (hi - 1 + padding) // stride + 1))
        return (first, last), (lo + padding - first * stride, (last - 1) * stride - padding + window - hi)

    def follows(self, operand: int) -> bool:
        return operand > 0

    def reads(self, operand: int, part: Part) -> Box:
        box = super().reads(operand, part)
        if self.follows(operand):
            return box
        (rows, _), (columns, _) = (self._span(part, n) for n in range(2))
        return box.along(2, *rows).along(3, *columns)

    def rows(self, x: Sequence[Any], y: Sequence[Any], extents: Mapping[str, int]) -> Any:
        return rows(y, x, self.stride[1])

    def flops(self, which: str, part: Part) -> float:
        # each element of x meets each tap once; parts of y have a share of them
        return super().flops(which, part) / (part.extent("H") * part.extent("W"))

    def _how(self, at: Part) -> dict[str, object]:
        (_, (top, bottom)), (_, (left, right)) = (self._span(at, n) for n in range(2))
        first, last = at.ranges.get("g", (0, 1))
        pads = (top, bottom, left, right)
        return {"stride": self.stride, "pads": pads, "dilation": self.dilation, "groups": last - first}

    def forward(self, k, x, w, b=None, *, at):
        shape = at.writes(0).shape
        if prod(x.shape):
            y = k.conv2d_grad_input(x, w, shape=shape, **self._how(at))
        else:
            y = k.zero(shape=shape, dtype=str(x.dtype))
        # a partial sum gets the bias from one piece only
        return k.add_bias(y, b, dim=1) if b is not None and at.first("i") else y

    def grad_inputs(self, k, dy, x, w, b=None, *, at):
        return (k.conv2d(dy, w, **self._how(at)) if prod(x.shape) else None,)

    def grad_params(self, k, dy, x, w, b=None, *, at):
        dw = k.conv2d_grad_weight(x, dy, kernel=w.shape[2:], **self._how(at)) if prod(x.shape) else None
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
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        extra: int | tuple[int, int] = 0,
    ) -> Tensor:
        """Add a transposed convolution with its parameters to graph `g`; PyTorch calls `extra` output_padding."""
        check_groups(name, groups, inputs=x.shape[1], channels=channels)
        (r, s), outputs = pair(kernel), channels // groups
        shape, axes = (x.shape[1], outputs, r, s), ("i", "o", "r", "s")
        params = parameters(g, name, shape, axes, channels, outputs * r * s, bias)
        op = ConvTranspose2d(pair(stride), pair(padding), pair(extra), pair(dilation), groups)
        return g.apply(op, name, x, *params)

"""Convolution over one dim: y[b, o] = sum over i of x[b, i] correlated with w[o, i]; stride, zero padding, groups.

With all the padding before the first element (causal) no result sees what comes after it (van den Oord et al., 2016).
"""

from __future__ import annotations

from typing import ClassVar

from castile.planner.families.convolution import Convolution, check_groups, parameters
from castile.planner.families.windows import Pair
from castile.planner.op import Tensor, op


@op("b i L!, *o i r! -> b o l", flops_per_point=2)
class Conv1d(Convolution):
    """x [b, i, L], w [o, i / g, r], optionally bias [o] -> [b, o, l]; padding before and after."""

    seen: ClassVar[tuple[str, ...]] = ("L",)
    made: ClassVar[tuple[str, ...]] = ("l",)
    taps: ClassVar[tuple[str, ...]] = ("r",)
    stride: tuple[int] = (1,)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int] = (1,)
    g: int = 1

    def ends(self, dim: int) -> Pair:
        return self.padding

    @staticmethod
    def layer(
        g,
        name: str,
        x: Tensor,
        channels: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        dilation: int = 1,
        groups: int = 1,
        causal: bool = False,
    ) -> Tensor:
        """Add a convolution over the last dim to graph `g`; a causal one is padded before, whatever `padding` says."""
        check_groups(name, groups, inputs=x.shape[1], channels=channels)
        inputs = x.shape[1] // groups
        params = parameters(g, name, (channels, inputs, kernel), ("o", "i", "r"), channels, inputs * kernel, bias)
        ends = ((kernel - 1) * dilation, 0) if causal else (padding, padding)
        return g.apply(Conv1d((stride,), ends, (dilation,), groups), name, x, *params)

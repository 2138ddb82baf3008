"""What convolutions over one and two dims have in common: their bodies, their work and their parameters.

It does not know how a window lies on a dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from castile.planner.families import windows
from castile.planner.families.windows import Pair, Sliding
from castile.planner.op import Init, Part, Tensor


class Convolution(Sliding):
    """x [b, i, ...], w [o, i / g, ...], optionally bias [o] -> [b, o, ...]: sums of what windows see times w.

    Of g groups each makes its part of the outputs o of its part of the inputs i; groups are split whole.
    """

    taps: ClassVar[tuple[str, ...]] = ("r", "s")
    g: int

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        i, o = ("(g i)", "(g o)") if self.g > 1 else ("i", "o")
        seen, taps = (" ".join(f"{axis}!" for axis in axes) for axes in (self.seen, self.taps))
        bias = f", *{o}" if len(inputs) == 3 else ""
        return f"b {i} {seen}, *{o} i {taps}{bias} -> b {o} {' '.join(self.made)}"

    def sizes(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(extents[tap] for tap in self.taps)

    def flops(self, which: str, part: Part) -> float:
        # the input's rows and columns are no points of their own: each output meets one window of them
        points = (hi - lo for axis, (lo, hi) in part.ranges.items() if axis not in self.seen)
        return self.flops_per_point * prod(points)

    def rows(self, x: Sequence[Any], y: Sequence[Any], extents: Mapping[str, int]) -> Any:
        is_product = self.g == 1 and {*self.sizes(extents), *self.stride} == {1}
        # where a window is an element, and none is left out, images are matrices as they lie
        return 0 if is_product else windows.rows(x, y, self.stride[-1])

    def how(self, at: Part) -> dict[str, object]:
        """What the kernels want to know of a part."""
        first, last = at.ranges.get("g", (0, 1))
        return {
            "stride": _pair(self.stride), "pads": self.pads(at), "dilation": _pair(self.dilation),
            "groups": last - first,
        }  # fmt: skip

    def forward(self, k: Any, x: Any, w: Any, b: Any = None, *, at: Part) -> Any:
        y = k.conv2d(x, w, **self.how(at))
        # a partial sum gets the bias from one piece only
        return k.add_bias(y, b, dim=1) if b is not None and at.first("i") else y

    def grad_inputs(self, k: Any, dy: Any, x: Any, w: Any, b: Any = None, *, at: Part) -> Any:
        return (k.conv2d_grad_input(dy, w, shape=x.shape, **self.how(at)),)

    def grad_params(self, k: Any, dy: Any, x: Any, w: Any, b: Any = None, *, at: Part) -> Any:
        dw = k.conv2d_grad_weight(dy, x, kernel=w.shape[2:], **self.how(at))
        if b is None:
            return (dw,)
        return dw, k.sum_over(dy, dims=(0, *range(2, dy.ndim))) if at.first("i") else None


def _pair(numbers: tuple[int, ...]) -> Pair:
    """For rows and columns; a single dim has columns only."""
    return (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])


def parameters(
    g: Any,
    name: str,
    shape: tuple[int, ...],
    axes: tuple[str, ...],
    channels: int,
    inputs: int,
    bias: bool,
    scale: float | None = None,
) -> list[Tensor]:
    """A weight of that shape, uniform in +-1/sqrt(inputs of a sum) or normal, and the bias of as many channels."""
    init = Init.by_inputs(inputs) if scale is None else Init("normal", scale)
    found = [g.param(f"{name}.weight", shape, axes, init)]
    return [*found, g.param(f"{name}.bias", (channels,), ("o",), Init("zeros"))] if bias else found


def check_groups(name: str, groups: int, **channels: int) -> None:
    """Raises ValueError where the groups do not divide the channels."""
    for what, number in channels.items():
        if groups < 1 or number % groups:
            raise ValueError(f"{name}: {number} {what} should be a multiple of groups, {groups}")

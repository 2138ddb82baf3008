"""Group normalisation: over neighbouring channels and all places of a sample, then a learned scale and shift a channel
(Wu and He, 2018)."""

from __future__ import annotations

from castile.planner.axes import fresh
from castile.planner.op import Init, Op, Tensor, op


@op("b (g c!) ..., *(g c!), *(g c!) -> b (g c!) ..., b g, b g", flops_per_point=8, results=("", "mean", "rstd"))
class GroupNorm(Op):
    """x [b, g*c, ...], gain and shift [g*c] -> y like x, mean and rstd [b, g]; g groups."""

    g: int = 1
    eps: float = 1e-5

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        if not inputs or len(inputs[0].shape) < 2:
            return self.line
        taken = {"g", "c"}
        b, _, *places = (axis if n == 1 else fresh(axis, taken) for n, axis in enumerate(inputs[0].axes))
        x = " ".join([b, "(g c!)", *(f"{axis}!" for axis in places)])
        return f"{x}, *(g c!), *(g c!) -> {x}, {b} g, {b} g"

    def forward(self, k, x, gain, shift, *, at):
        first, last = at.range("g")
        return k.group_norm(x, gain, shift, groups=last - first, eps=self.eps)

    def grad_inputs(self, k, dy, x, gain, shift, *, y):
        return (k.group_norm_grad_input(dy, x, gain, *y[1:]),)

    def grad_params(self, k, dy, x, gain, shift, *, y):
        return k.group_norm_grad_params(dy, x, *y[1:])

    @staticmethod
    def layer(g, name: str, x: Tensor, groups: int, eps: float = 1e-5) -> Tensor:
        """Add a group normalisation with its parameters to graph `g`."""
        if len(x.shape) < 2 or groups < 1 or x.shape[1] % groups:
            raise ValueError(f"{name}: {groups} groups do not divide the channels of {x.name!r}, shape {x.shape}")
        gain = g.param(f"{name}.weight", x.shape[1:2], ("c",), Init("ones"))
        shift = g.param(f"{name}.bias", x.shape[1:2], ("c",), Init("zeros"))
        return g.apply(GroupNorm(groups, eps), name, x, gain, shift)

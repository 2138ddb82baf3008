"""Batch normalisation (Ioffe and Szegedy, 2015): each channel without its mean, in its deviations, scaled and shifted.

The layer is made of several operators: statistics, what follows from them for each channel, and this one, which applies
it. Because pieces of a batch give partial sums of its statistics, these are synchronous under every plan.
"""

from __future__ import annotations

from math import prod

from castile.planner.op import Init, Op, Tensor, op
from castile.planner.ops.batch_factors import BatchFactors
from castile.planner.ops.batch_moments import BatchMoments
from castile.planner.ops.running_moment import RunningMoment


@op("b c ..., f! c -> b c ...", flops_per_point=1)
class BatchNorm(Op):
    """x [b, c, ...], factors [3, c] = mean, scale, shift -> (x - mean) scale + shift [b, c, ...]."""

    def forward(self, k, x, factors):
        return k.norm(x, factors)

    def grad_inputs(self, k, dy, x, factors):
        return k.norm_grad(dy, x, factors)

    @staticmethod
    def layer(g, name: str, x: Tensor, momentum: float = 0.1, eps: float = 1e-5, training: bool = True) -> Tensor:
        """Add batch normalisation of the second dim of x [b, c, ...] with its parameters to graph `g`.

        In training it normalises by the batch's own statistics and keeps `name.running_mean` and `name.running_var`
        [c], moving averages with that `momentum` of mean and unbiased variance; otherwise it normalises by these.
        """
        c = x.shape[1]
        gain = g.param(f"{name}.weight", (c,), ("c",), Init("ones"))
        shift = g.param(f"{name}.bias", (c,), ("c",), Init("zeros"))
        kept = f"{name}.running_mean", f"{name}.running_var"
        return BatchNorm.normalised(g, name, x, gain, shift, kept, momentum, eps, training)

    @staticmethod
    def normalised(
        g, name: str, x: Tensor, gain: Tensor, shift: Tensor, kept: tuple[str, str], momentum: float, eps: float,
        training: bool,
    ) -> Tensor:  # fmt: skip
        """The same with parameters that are there; kept: names of the running mean and variance."""
        c = x.shape[1]
        begin = dict(zip(kept, (Init("zeros"), Init("ones")), strict=True))
        if training:
            statistics = [g.apply(BatchMoments(), f"{name}.moments", x)]
            for n, (state, init) in enumerate(begin.items()):
                renew = RunningMoment(momentum, prod(x.shape) // c, variance=n == 1)
                g.state(state, (c,), ("c",), init, renew, *statistics)
        else:
            statistics = [g.state(state, (c,), ("c",), init) for state, init in begin.items()]
        factors = g.apply(BatchFactors(eps), f"{name}.factors", *statistics, gain, shift)
        return g.apply(BatchNorm(), name, x, factors)

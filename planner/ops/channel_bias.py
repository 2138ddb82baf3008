"""A number for each channel added to images: the bias of a convolution, where it stands by itself."""

from __future__ import annotations

from castile.planner.op import Op, op


@op("b c ..., c -> b c ...", flops_per_point=1)
class ChannelBias(Op):
    """x [b, c, ...], bias [c] -> x + bias [b, c, ...]."""

    def forward(self, k, x, bias):
        return k.add_bias(x, bias, dim=1)

    def grad_inputs(self, k, dy, x, bias):
        return dy, k.sum_over(dy, dims=(0, *range(2, dy.ndim)))

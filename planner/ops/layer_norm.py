"""Layer normalisation over the last dim, then a learned scale and shift (Ba, Kiros and Hinton, 2016)."""

from __future__ import annotations

from castile.planner.op import Init, Op, Tensor, op


@op("... d!, *d!, *d! -> ... d!, ..., ...", flops_per_point=8, results=("", "mean", "rstd"))
class LayerNorm(Op):
    """x [..., d], gain [d], shift [d] -> y [..., d], mean [...], rstd [...] (one over the standard deviation)."""

    eps: float = 1e-5

    def forward(self, k, x, gain, shift):
        return k.layer_norm(x, gain, shift, eps=self.eps)

    def grad_inputs(self, k, dy, x, gain, shift, *, y):
        _, mean, rstd = y
        return (k.layer_norm_grad_input(dy, x, gain, mean, rstd),)

    def grad_params(self, k, dy, x, gain, shift, *, y):
        _, mean, rstd = y
        return k.layer_norm_grad_params(dy, x, mean, rstd)

    @staticmethod
    def layer(g, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
        """Add a layer normalisation with its parameters to graph `g`."""
        width = x.shape[-1]
        gain = g.param(f"{name}.weight", (width,), ("d",), Init("ones"))
        shift = g.param(f"{name}.bias", (width,), ("d",), Init("zeros"))
        return g.apply(LayerNorm(eps), name, x, gain, shift)

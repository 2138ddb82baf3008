"""Root mean square normalisation over the last dim, then a learned scale (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from castile.planner.op import Init, Op, Tensor, op


@op("... d!, *d! -> ... d!, ...", flops_per_point=5, results=("", "rstd"))
class RmsNorm(Op):
    """x [..., d], gain [d] -> y [..., d], rstd [...] (one over the root of the mean square plus eps)."""

    eps: float = 1e-5

    def forward(self, k, x, gain):
        return k.rms_norm(x, gain, eps=self.eps)

    def grad_inputs(self, k, dy, x, gain, *, y):
        return (k.rms_norm_grad_input(dy, x, gain, y[1]),)

    def grad_params(self, k, dy, x, gain, *, y):
        return (k.rms_norm_grad_params(dy, x, y[1]),)

    @staticmethod
    def layer(g, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
        """Add a root mean square normalisation with its parameter to graph `g`."""
        gain = g.param(f"{name}.weight", x.shape[-1:], ("d",), Init("ones"))
        return g.apply(RmsNorm(eps), name, x, gain)

"""What batch normalisation does to each channel, from its statistics: mean to take off, scale, shift.

Made once for all samples, so that the pieces of a batch share one sum of their gradients.
"""

from __future__ import annotations

from castile.planner.op import Op, Tensor, op


@op("c, c, *c, *c -> f! c", flops_per_point=2)
class BatchFactors(Op):
    """moments [2, c], gain [c], shift [c] -> [3, c]: mean, gain / deviation, shift.

    In place of the moments, the means of x and of its square, may stand two operands: mean [c], variance [c].
    """

    eps: float = 1e-5

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        return "m! c, *c, *c -> f! c" if len(inputs) == 3 else self.line

    def extents(self, known: dict[str, int]) -> dict[str, int]:
        return {"f": 3}

    def forward(self, k, *operands):
        *statistics, gain, shift = operands
        return k.norm_factors(gain, shift, *statistics, eps=self.eps)

    def grad_inputs(self, k, df, *operands):
        return self._gradients(k, df, operands)[2:]

    def grad_params(self, k, df, *operands):
        return self._gradients(k, df, operands)[:2]

    def _gradients(self, k, df, operands):
        *statistics, gain, _ = operands
        return k.norm_factors_grad(df, gain, *statistics, eps=self.eps)

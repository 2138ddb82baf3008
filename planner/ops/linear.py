"""Linear: y = x w^T (+ b)."""

from __future__ import annotations

from castile.planner.op import Init, Op, Tensor, op


@op("... i, *o i -> ... o", flops_per_point=2)
class Linear(Op):
    """x [..., i], w [o, i], optionally b [o] -> [..., o]."""

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        return self.line if len(inputs) == 2 else "... i, *o i, *o -> ... o"

    def forward(self, k, x, w, b=None, *, at):
        y = k.contract("...i,oi->...o", x, w)
        # a partial sum gets the bias from one piece only
        return k.add(y, b) if b is not None and at.first("i") else y

    def grad_inputs(self, k, dy, x, w, b=None):
        return (k.contract("...o,oi->...i", dy, w),)

    def grad_params(self, k, dy, x, w, b=None, *, at):
        dw = k.contract("...o,...i->oi", dy, x)
        if b is None:
            return (dw,)
        return dw, k.sum_over(dy, dims=tuple(range(dy.ndim - 1))) if at.first("i") else None

    @staticmethod
    def layer(g, name: str, x: Tensor, features: int, bias: bool = True, scale: float | None = None) -> Tensor:
        """Add a linear layer with its parameters to graph `g`; weights uniform in +-1/sqrt(inputs) by default."""
        inputs = x.shape[-1]
        init = Init.by_inputs(inputs) if scale is None else Init("normal", scale)
        params = [g.param(f"{name}.weight", (features, inputs), ("o", "i"), init)]
        if bias:
            params.append(g.param(f"{name}.bias", (features,), ("o",), Init("zeros")))
        return g.apply(Linear(), name, x, *params)

"""Sum of two arrays; the second may lack leading dims (a table of positions added to every sample)."""

from __future__ import annotations

from castile.planner.op import Op, Tensor, op


@op("..., ... -> ...", flops_per_point=1)
class Add(Op):
    """x [...], y [...] or its last dims only -> [...]; y may be a parameter."""

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        if len(inputs) != 2:
            return self.line
        x, y = inputs
        missing = len(x.shape) - len(y.shape)
        if missing < 0 or x.shape[missing:] != y.shape:
            raise ValueError(f"add: {y.name!r} of shape {y.shape} should have the last dims of {x.name!r}, {x.shape}")
        axes = " ".join(x.axes)
        return f"{axes}, {'*' * y.param}{' '.join(x.axes[missing:])} -> {axes}"

    def forward(self, k, x, y):
        return k.add(x, y)

    def grad_inputs(self, k, dy, x, y, *, at):
        if at.alignment.operands[1].param:
            return (dy,)
        return dy, self._grad_second(k, dy, y)

    def grad_params(self, k, dy, x, y, *, at):
        return (self._grad_second(k, dy, y),) if at.alignment.operands[1].param else ()

    def _grad_second(self, k, dy, y):
        missing = dy.ndim - y.ndim
        return k.sum_over(dy, dims=tuple(range(missing))) if missing else dy

    @staticmethod
    def layer(g, name: str, x: Tensor, y: Tensor) -> Tensor:
        """Add the sum of two tensors to graph `g`; `y` is the smaller one, or a parameter."""
        return g.apply(Add(), name, x, y)

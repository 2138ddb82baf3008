"""Sum of two arrays; the second may lack leading dims (a table of positions added to every sample)."""

from __future__ import annotations

from castile.planner.op import Op, Tensor, op


@op("..., ... -> ...", flops_per_point=1)
class Add(Op):
    """x [...], other [...] or its last dims only -> [...]; other may be a parameter."""

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        if len(inputs) != 2:
            return self.line
        x, other = inputs
        missing = len(x.shape) - len(other.shape)
        if missing < 0 or x.shape[missing:] != other.shape:
            have = f"{other.name!r} of shape {other.shape}"
            raise ValueError(f"add: {have} should have the last dims of {x.name!r}, {x.shape}")
        axes = " ".join(x.axes)
        return f"{axes}, {'*' * other.param}{' '.join(x.axes[missing:])} -> {axes}"

    def forward(self, k, x, other):
        return k.add(x, other)

    def grad_inputs(self, k, dy, x, other, *, at):
        if at.alignment.operands[1].param:
            return (dy,)
        return dy, self._grad_other(k, dy, other)

    def grad_params(self, k, dy, x, other, *, at):
        return (self._grad_other(k, dy, other),) if at.alignment.operands[1].param else ()

    def _grad_other(self, k, dy, other):
        missing = dy.ndim - other.ndim
        return k.sum_over(dy, dims=tuple(range(missing))) if missing else dy

    @staticmethod
    def layer(g, name: str, x: Tensor, other: Tensor) -> Tensor:
        """Add the sum of two tensors to graph `g`; `other` is the smaller one, or a parameter."""
        return g.apply(Add(), name, x, other)

"""Expand: dims of one element are repeated; the gradient is the sum over them."""

from __future__ import annotations

from castile.planner.axes import fresh
from castile.planner.op import Op, Tensor, op


@op("... -> ...")
class Expand(Op):
    """x -> the same with its dims of one as long as `shape` says; x may be a parameter."""

    shape: tuple[int, ...] = ()

    def _dims(self, ndim: int, ones: tuple[int, ...]) -> tuple[int, ...]:
        """The dims that are repeated."""
        return tuple(dim for dim in range(ndim) if ones[dim] == 1 != self.shape[dim])

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        x = inputs[0]
        if len(x.shape) != len(self.shape) or any(n not in (1, m) for n, m in zip(x.shape, self.shape, strict=True)):
            raise ValueError(
                f"expand: {x.name!r} of shape {x.shape} cannot become {self.shape}: dims of one are repeated"
            )
        taken, gone = set(x.axes), self._dims(len(x.shape), x.shape)
        own = [fresh("one", taken) + "!" if dim in gone else axis for dim, axis in enumerate(x.axes)]
        return f"{'*' * x.param}{' '.join(own)} -> {' '.join(x.axes)}"

    def given_extents(self, inputs: tuple[Tensor, ...]) -> dict[str, int]:
        return dict(zip(inputs[0].axes, self.shape, strict=True))

    def _gone(self, at) -> tuple[int, ...]:
        return self._dims(len(self.shape), at.whole(0))

    def forward(self, k, x, *, at):
        gone = self._gone(at)
        if not gone:
            return k.copy(x)
        rest = tuple(length for dim, length in enumerate(x.shape) if dim not in gone)
        return k.expand(k.reshape(x, shape=rest), shape=at.writes(0).shape, dims=gone)

    def grad_inputs(self, k, dy, x, *, at):
        return () if at.alignment.operands[0].param else (self._gathered(k, dy, x, at),)

    def grad_params(self, k, dy, x, *, at):
        return (self._gathered(k, dy, x, at),) if at.alignment.operands[0].param else ()

    def _gathered(self, k, dy, x, at):
        gone = self._gone(at)
        return k.reshape(k.sum_over(dy, dims=gone), shape=x.shape) if gone else dy

    @staticmethod
    def layer(g, name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Add to graph `g` the repetition of dims of one, up to a shape of as many dims."""
        return g.apply(Expand(tuple(shape)), name, x)

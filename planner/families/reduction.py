"""Operators that take something over some dims of an array, which their result lacks.

They do not know what is taken: sums are partial where such a dim is split, what is no sum freezes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from castile.planner.axes import nonnegative_dim
from castile.planner.op import Op, Tensor


class Reduction(Op):
    """x [...] -> x without `dims` (counted from the end where negative); without all of them by default."""

    dims: tuple[int, ...] | None
    mark: ClassVar[str] = ""

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        if len(inputs) != 1:
            return self.line
        x = inputs[0]
        ndim = len(x.shape)
        wrong = [dim for dim in self.dims or () if not -ndim <= dim < ndim]
        gone = self.gone(ndim)
        if wrong or (self.dims is not None and len(gone) < len(self.dims)):
            raise ValueError(f"{self.name}: dims {self.dims} should be distinct dims of {x.name!r} of shape {x.shape}")
        axes = [axis + self.mark * (dim in gone) for dim, axis in enumerate(x.axes)]
        return f"{' '.join(axes)} -> {' '.join(axis for dim, axis in enumerate(axes) if dim not in gone)}"

    def gone(self, ndim: int) -> tuple[int, ...]:
        """The dims, of `ndim`, that the result lacks."""
        if self.dims is None:
            return tuple(range(ndim))
        return tuple(sorted({nonnegative_dim(dim, ndim) for dim in self.dims}))

    def kept(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The result's shape with dims of one for those that it lacks."""
        gone = self.gone(len(shape))
        return tuple(1 if dim in gone else length for dim, length in enumerate(shape))

    @classmethod
    def layer(cls, g: Any, name: str, x: Tensor, dims: int | Sequence[int] | None = None) -> Tensor:
        """Add the operator to graph `g`, over one dim, some, or all of them."""
        given = (dims,) if isinstance(dims, int) else dims
        return g.apply(cls(dims=None if given is None else tuple(given)), name, x)  # type: ignore[call-arg]

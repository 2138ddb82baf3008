"""What stands for a value of a file's graph while it is read: numbers that are known, or a tensor of castile's graph.

It does not know operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from castile.planner.op import Tensor

Shape = tuple[int, ...]


class Unsupported(ValueError):
    """What castile has no operator for; the words go on after the operator's name, "" where all of it is meant."""


@dataclass(frozen=True, eq=False)
class Known:
    """Numbers that do not depend on samples.

    name      of the value in the file
    make      gives the numbers; asked at most once
    learned   whether they are a network's weights, or follow from such
    form      how dims were moved since the value bore its name
    follow    makes them anew of the weight that they were taken from
    """

    name: str
    shape: Shape
    dtype: np.dtype
    make: Callable[[], np.ndarray]
    learned: bool = False
    form: tuple[tuple[str, Shape], ...] = ()
    follow: Callable[[], Tensor] | None = None

    @cached_property
    def array(self) -> np.ndarray:
        """The numbers."""
        return self.make()

    @property
    def is_floating(self) -> bool:
        """Whether they are floating-point numbers."""
        return self.dtype.kind == "f" or self.dtype.name == "bfloat16"

    @property
    def is_filler(self) -> bool:
        """Whether exporters wrote the same number everywhere, as where a network has no weight but an operator asks."""
        return not self.learned and self.follow is None and bool((self.array == self.array.flat[0]).all())

    @property
    def size(self) -> int:
        return prod(self.shape)

    def turned(self, dims: Shape) -> Known:
        """The same with its dims in another order."""
        if dims == tuple(range(len(dims))):
            return self
        form = self.form
        if form and form[-1][0] == "turned":
            *before, (_, first) = form
            whole = tuple(first[dim] for dim in dims)
            form = (*before, ("turned", whole)) if whole != tuple(range(len(whole))) else tuple(before)
        else:
            form = (*form, ("turned", dims))
        shape = tuple(self.shape[dim] for dim in dims)
        return replace(self, shape=shape, make=lambda: self.array.transpose(dims), form=form, follow=None)

    def reshaped(self, shape: Shape) -> Known:
        """The same numbers in the same order under other dims."""
        if shape == self.shape:
            return self
        form = self.form
        if form and form[-1][0] == "reshaped":
            form = form[:-1]
        return replace(
            self, shape=shape, make=lambda: self.array.reshape(shape), form=(*form, ("reshaped", shape)), follow=None
        )

    def derived(
        self, label: str, shape: Shape, make: Callable[[np.ndarray], np.ndarray], dtype: np.dtype | None = None
    ) -> Known:
        """Other numbers that are made of these, under a name of their own; "" keeps the name."""
        name = f"{self.name}.{label}" if label else self.name
        return replace(
            self, name=name, shape=shape, dtype=dtype or self.dtype, make=lambda: make(self.array), follow=None
        )


def known(name: str, array: np.ndarray, learned: bool = False) -> Known:
    """Numbers that are there."""
    return Known(name, array.shape, array.dtype, lambda: array, learned)


@dataclass(frozen=True)
class Erf:
    """times erf(inner) + plus: what castile computes only as a part of a Gaussian error linear unit."""

    inner: Tensor
    times: float = 1.0
    plus: float = 0.0

    @property
    def shape(self) -> Shape:
        return self.inner.shape

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32)


@dataclass(frozen=True)
class Several:
    """A sequence of values, of which others take one each."""

    pieces: tuple[Known | Tensor, ...]

    @property
    def shape(self) -> Shape:
        raise Unsupported("of a sequence")

    @property
    def dtype(self) -> np.dtype:
        raise Unsupported("of a sequence")


Value = Known | Tensor | Erf | Several

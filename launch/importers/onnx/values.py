"""What stands for a value of a file's graph while it is read: numbers that are known, or a tensor of castile's graph.

It does not know operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np

from castile.planner.op import Tensor

Shape = tuple[int, ...]
# "turned" by an order of dims or "reshaped" to a shape, that, and the shape before.
Step = tuple[str, Shape, Shape]
Form = tuple[Step, ...]


class Unsupported(ValueError):
    """What castile has no operator for; the words go on after the operator's name, "" where all of it is meant."""


class Uncomputed(Unsupported):
    """A node of the file that castile cannot compute of weights, and how."""

    def __init__(self, node: Any, how: str) -> None:
        super().__init__(how)
        self.node = node


@dataclass(frozen=True, eq=False)
class Known:
    """Numbers that do not depend on samples.

    name      of the value in the file
    make      gives the numbers; asked at most once
    learned   whether they are a network's weights, or are computed of such
    sure      whether the file itself says that they are trained
    form      how dims were moved since the value bore its name
    follow    makes, before these moves, in castile's graph what is computed of weights
    weights   the names of those
    """

    name: str
    shape: Shape
    dtype: np.dtype
    make: Callable[[], np.ndarray]
    learned: bool = False
    sure: bool = False
    form: Form = ()
    follow: Callable[[], Tensor] | None = None
    weights: tuple[str, ...] = ()

    @cached_property
    def array(self) -> np.ndarray:
        """The numbers."""
        return self.make()

    @property
    def is_floating(self) -> bool:
        """Whether they are floating-point numbers."""
        return is_real(self.dtype)

    @property
    def origins(self) -> tuple[str, ...]:
        """The names of the weights that they are, or are computed of."""
        return self.weights or (self.name,)

    @property
    def is_filler(self) -> bool:
        """Whether exporters wrote the same number everywhere, as where a network has no weight but an operator asks."""
        return not self.learned and bool((self.array == self.array.flat[0]).all())

    @property
    def is_weight(self) -> bool:
        """Whether they change in training wherever they are used; of single numbers a file has to say so."""
        return self.learned and self.is_floating and (self.size > 1 or self.sure or self.follow is not None)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def unmoved(self) -> Known:
        """The same as it was before its dims were moved."""
        found = self
        for kind, how, _ in steps(self.form, ()):
            found = found.turned(how) if kind == "turned" else found.reshaped(how)
        return found

    def turned(self, dims: Shape) -> Known:
        """The same with its dims in another order."""
        if dims == tuple(range(len(dims))):
            return self
        form = self.form
        if form and form[-1][0] == "turned":
            *before, (_, first, shape) = form
            whole = tuple(first[dim] for dim in dims)
            form = (*before, ("turned", whole, shape)) if whole != tuple(range(len(whole))) else tuple(before)
        else:
            form = (*form, ("turned", dims, self.shape))
        shape = tuple(self.shape[dim] for dim in dims)
        return replace(self, shape=shape, make=lambda: self.array.transpose(dims), form=form)

    def reshaped(self, shape: Shape) -> Known:
        """The same numbers in the same order under other dims."""
        if shape == self.shape:
            return self
        form, before = self.form, self.shape
        if form and form[-1][0] == "reshaped":
            *rest, (_, _, before) = form
            form = tuple(rest)
        form = form if before == shape else (*form, ("reshaped", shape, before))
        return replace(self, shape=shape, make=lambda: self.array.reshape(shape), form=form)

    def derived(
        self, label: str, shape: Shape, make: Callable[[np.ndarray], np.ndarray], dtype: np.dtype | None = None
    ) -> Known:
        """Other numbers that are made of these, under a name of their own; "" keeps the name."""
        if self.follow is not None:
            raise Unsupported(f"of parts of {self.name!r}, which is computed of weights")
        name = f"{self.name}.{label}" if label else self.name
        return replace(self, name=name, shape=shape, dtype=dtype or self.dtype, make=lambda: make(self.array))


def steps(one: Form, other: Form) -> Form:
    """How dims are moved from one form to another."""
    alike = 0
    while alike < min(len(one), len(other)) and one[alike] == other[alike]:
        alike += 1
    undone = list[Step]()
    for kind, how, before in reversed(one[alike:]):
        undone.append((kind, tuple(how.index(n) for n in range(len(how))) if kind == "turned" else before, how))
    return (*undone, *other[alike:])


def is_real(dtype: np.dtype) -> bool:
    """Whether numbers of a dtype are floating-point ones that castile has."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def from_start(places: np.ndarray, *lengths: int) -> np.ndarray:
    """Indices, of which those below zero count from the end, from the start on; in their last dim one for each length
    where there are several. Raises Unsupported where there is no such element."""
    bounds = np.array(lengths) if len(lengths) > 1 else lengths[0]
    if ((places < -bounds) | (places >= bounds)).any():
        raise Unsupported(f"with an index of no element, of {' x '.join(map(str, lengths))}")
    return places % bounds


def known(name: str, array: np.ndarray, learned: bool = False) -> Known:
    """Numbers that are there."""
    return Known(name, array.shape, array.dtype, lambda: array, learned)


@dataclass(frozen=True)
class Erf:
    """times erf(inner) + plus: what castile computes only as a part of a Gaussian error linear unit."""

    refusal: ClassVar[str] = "of what Erf gives, which castile has in x * 0.5 * (1 + erf(x / sqrt(2))) alone"

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
class Whole:
    """Numbers of castile's graph that in the file are of another kind: whole ones that are floating-point numbers here,
    or what holds, 1, and what does not, 0.

    dtype   in the file
    """

    tensor: Tensor
    dtype: np.dtype

    @property
    def shape(self) -> Shape:
        return self.tensor.shape


@dataclass(frozen=True)
class Several:
    """A sequence of values, of which others take one each."""

    refusal: ClassVar[str] = "of a sequence"

    pieces: tuple[Known | Tensor, ...]

    @property
    def shape(self) -> Shape:
        raise Unsupported(self.refusal)

    @property
    def dtype(self) -> np.dtype:
        raise Unsupported(self.refusal)


@dataclass(frozen=True)
class Drawn:
    """Random numbers between two, all alike: what castile has only where they are compared with one number."""

    refusal: ClassVar[str] = "of random numbers, which castile has in dropout alone"
    dtype: ClassVar[np.dtype] = np.dtype(np.float32)

    shape: Shape
    low: float
    high: float


@dataclass(frozen=True)
class Left:
    """1 or 0 at random, so many of them 1: what castile has only where that is divided by how many."""

    refusal: ClassVar[str] = "of what is left at random, which castile has where it is divided by its share alone"
    dtype: ClassVar[np.dtype] = np.dtype(np.float32)

    shape: Shape
    share: float


Value = Known | Tensor | Whole | Erf | Several | Drawn | Left

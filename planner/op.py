"""Operators: an axis line, three bodies, and the hooks for what the line cannot say.

    @op("... i, *o i -> ... o", flops_per_point=2)
    class Linear(Op): ...

Shapes, shards, partial sums, work and costs follow from the line. An operator does not know strategies or processors,
and computes nothing itself: its bodies call only the kernel vocabulary `k` that is passed in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from importlib import import_module
from math import inf, prod, sqrt
from pkgutil import iter_modules
from typing import Any, ClassVar, NamedTuple, dataclass_transform

import numpy as np

from castile.planner.axes import Alignment, Operand, align, parse
from castile.runtime.region import Box

OPS = "castile.planner.ops"
INIT_KINDS = ("normal", "uniform", "zeros", "ones", "given")
PASSES = {"F": "forward", "B": "grad_inputs", "W": "grad_params"}


@dataclass(frozen=True)
class Init:
    """A parameter's initial values.

    kind     "normal", "uniform", "zeros", "ones", or "given" for `values`
    scale    standard deviation of "normal", half width of "uniform"
    values   an array of the parameter's shape
    fixed    whether it is a setting of the model, which no file of weights changes
    Raises ValueError for another kind, and for a scale that is negative or not finite.
    """

    kind: str
    scale: float = 0.0
    values: Any = field(default=None, repr=False, compare=False)
    fixed: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in INIT_KINDS:
            raise ValueError(f"parameters begin as one of {', '.join(INIT_KINDS)}, not as {self.kind!r}")
        if not 0 <= self.scale < inf:
            raise ValueError(f"the scale of what begins as {self.kind} should be finite and at least 0: {self.scale}")

    @classmethod
    def by_inputs(cls, number: int) -> Init:
        """Uniform in +-1/sqrt(number), for weights that sum `number` inputs each."""
        # a weight without inputs is refused for its shape
        return cls("uniform", 1 / sqrt(max(1, number)))


@dataclass(frozen=True)
class Tensor:
    """A named array of the graph: its shape, dtype and axis names, one a dim; `init` for a parameter."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str, ...]
    param: bool = False
    init: Init | None = None

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.shape) or len(set(self.axes)) < len(self.axes):
            raise ValueError(
                f"tensor {self.name!r} of shape {self.shape} needs one distinct axis name a dim, got {self.axes}"
            )
        if not isinstance(self.init, Init | None):
            raise ValueError(f"tensor {self.name!r}: say how it begins by an Init, not by {self.init!r}")
        if self.init is not None and self.init.kind == "given":
            there = getattr(self.init.values, "shape", None)
            if there != self.shape:
                of = f"an array of shape {there}" if there is not None else f"a {type(self.init.values).__name__}"
                raise ValueError(f"tensor {self.name!r} of shape {self.shape} is given {of}: give an array as large")

    @property
    def floating(self) -> bool:
        """Whether it holds floating-point numbers: integers have no gradient."""
        return self.dtype.startswith(("float", "bfloat"))


class Op:
    """Base of all operators. A subclass states its line and bodies; its dataclass fields are its settings.

    forward(k, *operands)            -> the results
    grad_inputs(k, dy, *operands)    -> a gradient for each operand that is no parameter (None: has none)
    grad_params(k, dy, *operands)    -> a gradient for each parameter
    A body with a keyword `at` gets the Part that it computes; a gradient body with a keyword `y` gets the tuple of
    forward's results. A result or gradient of None contributes nothing. Gradients flow through the first `flows`
    results: where there are several, dy is the tuple of their gradients, with zeros for an unused result. The other
    results are values kept for the gradient passes.
    """

    line: ClassVar[str] = ""
    flops_per_point: ClassVar[float] = 0
    results: ClassVar[tuple[str, ...]] = ("",)
    flows: ClassVar[int] = 1
    # Settings that do not change the amount of work: they say where, or which one.
    costless: ClassVar[tuple[str, ...]] = ()
    # Those of them that bodies do not read: parts record the same calls and touch as much whatever their values.
    unrecorded: ClassVar[tuple[str, ...]] = ()
    # Whether bodies use a part's position only as literals of kernel calls. Parts of equal extents that touch boxes of
    # equal shapes then record the same calls but for literals.
    place_in_literals: ClassVar[bool] = False
    # Integer operands that hold indices along an axis: (operand, axis).
    numbering: ClassVar[tuple[tuple[int, str], ...]] = ()
    # Operands of which passes read only the rows that indices name: (operand, operand of the indices).
    looked_up: ClassVar[tuple[tuple[int, int], ...]] = ()
    # Operands whose values lie in [0, 1].
    shares: ClassVar[tuple[int, ...]] = ()

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        """The axis line for these inputs. Override it where the line depends on their shapes (broadcasting)."""
        return self.line

    def given_extents(self, inputs: tuple[Tensor, ...]) -> Mapping[str, int]:
        """Extents that the settings give, by axis: by default an integer setting is that of the axis of its name."""
        return {name: value for name, value in self.settings if isinstance(value, int)}

    def extents(self, known: dict[str, int]) -> Mapping[str, int]:
        """Extents of axes that only results have, from the known ones."""
        return {}

    def reads(self, operand: int, part: Part) -> Box:
        """The box of an operand that a part reads, empty where it reads nothing; by default as the axis line says."""
        return part.shard(part.alignment.operands[operand])

    def follows(self, operand: int) -> bool:
        """Whether all parts read an operand as the axis line says."""
        return type(self).reads is Op.reads

    def touched(self, operand: int, part: Part) -> Any:
        """How many elements of its box of an operand a part reads: all, or those of the rows that indices name.

        A part with a share of all rows is taken to be named by the same share of the indices, each row at most once.
        """
        size = prod(part.reads(operand).shape)
        if operand not in dict(self.looked_up):
            return size
        numbers = dict(self.looked_up)[operand]
        axis = dict(self.numbering)[numbers]
        lo, hi = part.range(axis)
        named = -(-prod(part.reads(numbers).shape) * (hi - lo) // part.extent(axis))
        return size // (hi - lo) * np.minimum(hi - lo, named)

    def has_gradient(self, operand: int) -> bool:
        """Whether a floating-point operand has a gradient: one that only selects has none."""
        return self.flows > 0

    def apart(self, operand: int, a: Alignment) -> tuple[str, ...] | None:
        """The axes along which parts read disjoint pieces of an operand that together make up all of it.

        Parts that differ along other axes only read the same piece. None where pieces may overlap, as windows do.
        """
        return a.operands[operand].axes if type(self).reads is Op.reads else None

    def flops(self, which: str, part: Part) -> float:
        """Floating-point operations of a part's pass: by default `flops_per_point` for each point, in every pass."""
        return self.flops_per_point * prod(hi - lo for lo, hi in part.ranges.values())

    @property
    def has_rows(self) -> bool:
        """Whether `rows` may be more than 0."""
        return type(self).rows is not Op.rows

    def rows(self, x: Sequence[Any], y: Sequence[Any], extents: Mapping[str, int]) -> Any:
        """How many image rows a pass of a part copies so that windows can slide over them, a cost of a CPU core that
        the bytes in them do not show; 0 where arrays are read in place.

        x, y      shapes of the part's first operand and first result
        extents   of the whole node's axes
        """
        return 0

    @property
    def has_looks(self) -> bool:
        """Whether `looks` may be more than 0."""
        return type(self).looks is not Op.looks

    def looks(self, which: str, part: Part) -> int:
        """How many numbers a pass of a part computes by reading short rows or windows several times, as a softmax and
        the positions of maxima do, a cost of a CPU core that the operations on them do not show.
        """
        return 0

    @property
    def name(self) -> str:
        """The name of its file; with the class's own name where it is a user's, as a model's file may hold several."""
        file = type(self).__module__.rpartition(".")[2]
        return f"{file}.{type(self).__name__}" if self.is_from_elsewhere else file

    @property
    def is_from_elsewhere(self) -> bool:
        """Whether it is defined outside planner/ops."""
        return type(self).__module__.rpartition(".")[0] != OPS

    @cached_property
    def settings(self) -> tuple[tuple[str, object], ...]:
        """Names and values of its settings."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]

    @cached_property
    def cost_settings(self) -> tuple[tuple[str, object], ...]:
        """The settings on which the cost depends."""
        return tuple((name, value) for name, value in self.settings if name not in self.costless)

    @cached_property
    def recorded_settings(self) -> tuple[tuple[str, object], ...]:
        """The settings on which the calls that bodies record may depend."""
        return tuple((name, value) for name, value in self.settings if name not in self.unrecorded)

    def bind(self, inputs: tuple[Tensor, ...], who: str) -> Alignment:
        """Fit the axis line to the inputs. Raises ValueError in the user's names where they do not fit."""
        line = parse(self.axis_line(inputs))
        if len(line.results) != len(self.results):
            raise ValueError(
                f"{who} ({self.name}): its axis line has {len(line.results)} results, and @op has labels for "
                f'{len(self.results)}: give as many, the first empty, as in results=("", "mean")'
            )
        shapes, names = [t.shape for t in inputs], [t.axes for t in inputs]
        given = {axis: extent for axis, extent in self.given_extents(inputs).items() if axis in _names(line)}
        return align(line, shapes, names, given, self.extents, f"{who} ({self.name})")

    def has(self, which: str) -> bool:
        """Whether the operator has a body for pass "F", "B" or "W"."""
        return hasattr(self, PASSES[which])

    def asks(self, which: str) -> frozenset[str]:
        """The keywords of the pass's body, of `at` and `y`."""
        return _asks(getattr(type(self), PASSES[which]))


@cache
def _asks(body: Callable) -> frozenset[str]:
    parameters = inspect.signature(body).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


@cache
def _names(line: Any) -> frozenset[str]:
    return frozenset(a for o in (*line.operands, *line.results) for a in o.axes)


@dataclass_transform(frozen_default=True)
def op(
    line: str, flops_per_point: float = 0, results: tuple[str, ...] = ("",), flows: int = 1
) -> Callable[[type], type]:
    """Make a class an operator: a frozen dataclass with that axis line.

    results   labels of its results; the first has none
    flows     how many of them, from the first, have gradients
    Raises ValueError for a setting whose name every operator has for something else, and for labels that do not begin
    with an empty one or are not all different.
    """

    def wrap(cls: type) -> type:
        if not results or results[0] or len({*results}) < len(results) or not 0 <= flows <= len(results):
            raise ValueError(
                f"operator {cls.__name__}: results={results} are labels that differ, the first empty, and the first "
                f"flows={flows} of these have gradients"
            )
        setattr(cls, "line", line)
        setattr(cls, "flops_per_point", flops_per_point)
        setattr(cls, "results", results)
        setattr(cls, "flows", flows)
        made: Any = dataclass(frozen=True)(cls)
        if taken := [f.name for f in fields(made) if hasattr(Op, f.name) or f.name in PASSES.values()]:
            raise ValueError(
                f"operator {cls.__name__}: every operator has {taken[0]!r} of its own: call the setting something else"
            )
        return made

    return wrap


class Part(NamedTuple):
    """One piece of an operator's work: a range of every axis."""

    op: Op
    alignment: Alignment
    ranges: Mapping[str, tuple[int, int]]

    def range(self, axis: str) -> tuple[int, int]:
        """The part's (begin, end) along an axis."""
        return self.ranges[axis]

    def extent(self, axis: str) -> int:
        """The whole node's extent along an axis."""
        return self.alignment.extents[axis]

    def first(self, axis: str) -> bool:
        """Whether this is the first piece along an axis: the one that adds what must be added only once, as a bias."""
        return self.ranges[axis][0] == 0

    def reads(self, operand: int) -> Box:
        """The box of an operand that this part reads."""
        return self.op.reads(operand, self)

    def touches(self, operand: int) -> Any:
        """How many elements of that box a pass reads."""
        return self.op.touched(operand, self)

    def writes(self, result: int) -> Box:
        """The box of a result that this part computes, or to which it adds a partial sum."""
        return self.shard(self.alignment.results[result])

    def whole(self, operand: int) -> tuple[int, ...]:
        """The shape of a whole operand."""
        return self.alignment.shape(self.alignment.operands[operand])

    def shard(self, operand: Operand) -> Box:
        """The operator law: an array that has a split axis is cut along it; along other axes it is whole."""
        a, of = self.alignment, self.ranges
        rows = [a.dim_range(dim, of[dim[0]]) if dim else (0, 1) for dim in operand.dims]
        return Box(tuple([lo for lo, _ in rows]), tuple([hi for _, hi in rows]))


@cache
def find(name: str) -> type[Any]:
    """The operator of the file planner/ops/<name>.py. Raises ValueError where there is none."""
    if name not in available():
        raise ValueError(f"no operator {name!r}; there are {', '.join(available())}")
    module = import_module(f"{OPS}.{name}")
    return next(
        c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__ and issubclass(c, Op)
    )


@cache
def available() -> tuple[str, ...]:
    """The names of all operators, found by walking the folder."""
    package = import_module(OPS)
    return tuple(sorted(m.name for m in iter_modules(package.__path__)))

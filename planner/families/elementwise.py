"""Operators that are a line of arithmetic on each element: of one array, or of several that broadcast.

A subclass states the line and how its gradients follow; it does not know shapes, nor how arrays broadcast. In lines
`x` is the operand of a Unary, `a` and `b` those of a Binary, `y` the result, `d` the gradient of the result, and a
setting is a constant of its name.
"""

from __future__ import annotations

from typing import Any, ClassVar

from castile.planner.axes import fresh
from castile.planner.op import Op, Part, Tensor


class Unary(Op):
    """x [...] -> y [...].

    value   the line of y, as in "x -> tanh(x)"
    slope   the line of x's gradient, as in "d, y -> d * (1 - y * y)"; what it does not name is not kept for it
    """

    value: ClassVar[str]
    slope: ClassVar[str]

    def forward(self, k: Any, x: Any) -> Any:
        return k.pointwise(self.value, x, **dict(self.settings))

    def grad_inputs(self, k: Any, dy: Any, x: Any, *, y: Any) -> Any:
        named = _named(self.slope, {"d": dy, "x": x, "y": y[0]})
        return (k.pointwise(self.slope, *named, **dict(self.settings)),)

    @classmethod
    def layer(cls, g: Any, name: str, x: Tensor, *values: float, **settings: float) -> Tensor:
        """Add the operator to graph `g`; its settings in their order, or by name."""
        return g.apply(cls(*values, **settings), name, x)


class Broadcast(Op):
    """Arrays [...] -> y [...]: missing leading dims and dims of one are stretched, of any operand.

    value    the line of y, as in "a, b -> a * b"
    slopes   the line of each operand's gradient, which is summed over the dims along which the operand was stretched;
             None where it has none, as what is only compared has
    """

    value: ClassVar[str]
    slopes: ClassVar[tuple[str | None, ...]]

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        return broadcast_line(self.name, inputs) if len(inputs) == len(self.slopes) else self.line

    def has_gradient(self, operand: int) -> bool:
        return self.slopes[operand] is not None

    def forward(self, k: Any, *xs: Any) -> Any:
        return k.pointwise(self.value, *xs, **dict(self.settings))

    def grad_inputs(self, k: Any, dy: Any, *xs: Any, at: Part, y: Any) -> Any:
        return self._gradients(k, dy, xs, y, at, False)

    def grad_params(self, k: Any, dy: Any, *xs: Any, at: Part, y: Any) -> Any:
        return self._gradients(k, dy, xs, y, at, True)

    def _gradients(self, k: Any, dy: Any, xs: tuple[Any, ...], y: Any, at: Part, params: bool) -> Any:
        known = {"d": dy, "y": y[0]} | dict(zip(_names(self.value), xs, strict=True))
        operands = zip(at.alignment.operands, self.slopes, xs, strict=True)
        return tuple(
            slope and _gradient(k, slope, known, like, dict(self.settings))
            for o, slope, like in operands
            if o.param == params
        )


class Binary(Broadcast):
    """a [...], b [...] -> y [...]."""

    slopes: ClassVar[tuple[str | None, str | None]]

    @classmethod
    def layer(cls, g: Any, name: str, x: Tensor, other: Tensor) -> Tensor:
        """Add the operator to graph `g`; either operand may be the smaller one, and either a parameter."""
        return g.apply(cls(), name, x, other)


def broadcast_line(who: str, inputs: tuple[Tensor, ...]) -> str:
    """The axis line of arrays that broadcast. Raises ValueError where they do not."""
    *operands, y = _aligned(who, inputs)
    terms = [f"{'*' * t.param}{' '.join(axes)}" for t, axes in zip(inputs, operands, strict=True)]
    return f"{', '.join(terms)} -> {' '.join(y)}"


def _names(line: str) -> list[str]:
    return [name.strip() for name in line.partition("->")[0].split(",")]


def _named(line: str, known: dict[str, Any]) -> list[Any]:
    """The arrays that a line names, in its order."""
    names = _names(line)
    if strange := [name for name in names if name not in known]:
        raise ValueError(f'line "{line}": there is no array {strange[0]!r}, only {", ".join(known)}')
    return [known[name] for name in names]


def _gradient(k: Any, line: str, known: dict[str, Any], like: Any, constants: dict[str, Any]) -> Any:
    """The gradient of an operand, summed over the dims along which it was stretched."""
    arrays, whole = _named(line, known), known["d"]
    missing = whole.ndim - like.ndim
    ones = [dim for dim in range(missing, whole.ndim) if like.shape[dim - missing] == 1 != whole.shape[dim]]
    if not missing and not ones:
        return whole if line == "d -> d" else k.pointwise(line, *arrays, **constants)
    dims = (*range(missing), *ones)
    total = k.sum_over(whole, dims=dims) if line == "d -> d" else k.sum_pointwise(line, *arrays, dims=dims, **constants)
    return k.reshape(total, shape=like.shape) if ones else total


def _aligned(who: str, inputs: tuple[Tensor, ...]) -> tuple[list[str], ...]:
    """Axis names of each operand and of the result. Raises ValueError where the shapes do not broadcast."""
    ndim = max(len(t.shape) for t in inputs)
    taken: set[str] = set()
    axes: tuple[list[str], ...] = tuple([] for _ in (*inputs, None))
    for dim in range(-ndim, 0):
        lengths = [t.shape[dim] if -dim <= len(t.shape) else None for t in inputs]
        if len({n for n in lengths if n not in (None, 1)}) > 1:
            have = " and ".join(f"{t.name!r} of shape {t.shape}" for t in inputs)
            raise ValueError(f"{who}: {have} do not broadcast: lengths from the last dims on should be equal or one")
        long = max(n for n in lengths if n is not None)
        first = next(t for t, n in zip(inputs, lengths, strict=True) if n == long)
        name = fresh(first.axes[dim], taken)
        axes[-1].append(name)
        for own, n in zip(axes, lengths, strict=False):
            if n is not None:
                own.append(name if n == long else fresh("one", taken))
    return axes

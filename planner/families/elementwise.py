"""Operators that are a line of arithmetic on each element: of one array, or of two that broadcast.

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


class Binary(Op):
    """a [...], b [...] -> y [...]: missing leading dims and dims of one are stretched, of either operand.

    value    the line of y, as in "a, b -> a * b"
    slopes   the lines of a's and b's gradients, which are summed over the dims along which the operand was stretched
    """

    value: ClassVar[str]
    slopes: ClassVar[tuple[str, str]]

    def axis_line(self, inputs: tuple[Tensor, ...]) -> str:
        if len(inputs) != 2:
            return self.line
        a, b, y = _aligned(self.name, *inputs)
        marks = ["*" * t.param for t in inputs]
        return f"{marks[0]}{' '.join(a)}, {marks[1]}{' '.join(b)} -> {' '.join(y)}"

    def forward(self, k: Any, a: Any, b: Any) -> Any:
        return k.pointwise(self.value, a, b)

    def grad_inputs(self, k: Any, dy: Any, a: Any, b: Any, *, at: Part, y: Any) -> Any:
        return self._gradients(k, dy, a, b, y, at, False)

    def grad_params(self, k: Any, dy: Any, a: Any, b: Any, *, at: Part, y: Any) -> Any:
        return self._gradients(k, dy, a, b, y, at, True)

    def _gradients(self, k: Any, dy: Any, a: Any, b: Any, y: Any, at: Part, params: bool) -> Any:
        known = {"d": dy, "a": a, "b": b, "y": y[0]}
        operands = zip(at.alignment.operands, self.slopes, (a, b), strict=True)
        return tuple(_gradient(k, slope, known, like) for o, slope, like in operands if o.param == params)

    @classmethod
    def layer(cls, g: Any, name: str, x: Tensor, other: Tensor) -> Tensor:
        """Add the operator to graph `g`; either operand may be the smaller one, and either a parameter."""
        return g.apply(cls(), name, x, other)


def _named(line: str, known: dict[str, Any]) -> list[Any]:
    """The arrays that a line names, in its order."""
    names = [name.strip() for name in line.partition("->")[0].split(",")]
    if strange := [name for name in names if name not in known]:
        raise ValueError(f'line "{line}": there is no array {strange[0]!r}, only {", ".join(known)}')
    return [known[name] for name in names]


def _gradient(k: Any, line: str, known: dict[str, Any], like: Any) -> Any:
    """The gradient of an operand, summed over the dims along which it was stretched."""
    arrays, whole = _named(line, known), known["d"]
    missing = whole.ndim - like.ndim
    ones = [dim for dim in range(missing, whole.ndim) if like.shape[dim - missing] == 1 != whole.shape[dim]]
    if not missing and not ones:
        return whole if line == "d -> d" else k.pointwise(line, *arrays)
    dims = (*range(missing), *ones)
    total = k.sum_over(whole, dims=dims) if line == "d -> d" else k.sum_pointwise(line, *arrays, dims=dims)
    return k.reshape(total, shape=like.shape) if ones else total


def _aligned(who: str, a: Tensor, b: Tensor) -> tuple[list[str], list[str], list[str]]:
    """Axis names of a, b and the result. Raises ValueError where the shapes do not broadcast."""
    ndim = max(len(a.shape), len(b.shape))
    taken: set[str] = set()
    axes: tuple[list[str], list[str], list[str]] = ([], [], [])
    for dim in range(-ndim, 0):
        lengths = [t.shape[dim] if -dim <= len(t.shape) else None for t in (a, b)]
        if len({n for n in lengths if n not in (None, 1)}) > 1:
            have = " and ".join(f"{t.name!r} of shape {t.shape}" for t in (a, b))
            raise ValueError(f"{who}: {have} do not broadcast: lengths from the last dims on should be equal or one")
        long = max(n for n in lengths if n is not None)
        first = next(t for t, n in zip((a, b), lengths, strict=True) if n == long)
        name = fresh(first.axes[dim], taken)
        axes[2].append(name)
        for own, n in zip(axes, lengths, strict=False):
            if n is not None:
                own.append(name if n == long else fresh("one", taken))
    return axes

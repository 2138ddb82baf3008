"""Layers of drawn graphs: a function `layer_<operator>(canvas)` adds one to a graph, found by its name.

A new operator needs one such function and nothing else to be drawn in random graphs under random plans.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from castile.planner.graph import Graph
from castile.planner.op import Tensor

Layer = Callable[["Canvas"], Tensor | None]


@dataclass
class Canvas:
    """A graph under construction, for `batch` samples; layers take tensors of the pool.

    exact    what rounds is left out
    labels   how many integers each integer input takes its values from
    """

    draw: DrawFn
    exact: bool
    batch: int = 1
    graph: Graph = field(default_factory=lambda: Graph("drawn", "float64"))
    pool: list[Tensor] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def name(self, kind: str) -> str:
        return f"{kind}{len(self.graph.nodes)}"

    def choose(self, fits: Callable[[Tensor], bool]) -> Tensor | None:
        found = [t for t in self.pool if fits(t)]
        # the latest first, so that chains are deep
        return self.draw(st.sampled_from(found[::-1])) if found else None

    def any(self) -> Tensor | None:
        return self.choose(lambda t: True)

    def source(self, kind: str) -> Tensor:
        """An input: "flat" [b, i], "sequence" [b, s, i], "image" [b, c, h, w]."""
        least, most = {"flat": ((1,), (6,)), "sequence": ((1, 1), (4, 6)), "image": ((1, 2, 2), (3, 5, 5))}[kind]
        shape = (self.batch, *map(self.integer, least, most))
        axes = {"flat": "b i", "sequence": "b s i", "image": "b c h w"}[kind]
        self.pool.append(self.graph.input(f"x{len(self.graph.inputs)}", shape, axes))
        return self.pool[-1]

    def tokens(self, below: int, *shape: int) -> Tensor:
        """An input of integers below a number, [b, *shape]."""
        name = f"tokens{len(self.graph.inputs)}"
        self.labels[name] = below
        axes = " ".join(["b", *(f"s{n}" for n in range(len(shape)))])
        return self.graph.input(name, (self.batch, *shape), axes, "int64")

    def integer(self, lo: int, hi: int) -> int:
        return self.draw(st.integers(lo, hi))


def layer(exact: bool = False) -> Callable[[Layer], Layer]:
    """Marks a layer: it adds its operator to tensors that fit and gives the result, or None where none fits.

    exact   on small integers it computes without rounding, forward and backward
    """

    def mark(function: Layer) -> Layer:
        function.exact = exact  # type: ignore[attr-defined]
        return function

    return mark


@cache
def layers(exact: bool = False) -> dict[str, Layer]:
    """All layers by the name of their operator, or those that are exact on small integers."""
    modules = [import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__)]
    found = [pair for module in modules for pair in inspect.getmembers(module, inspect.isfunction)]
    named = {name.removeprefix("layer_"): f for name, f in found if name.startswith("layer_")}
    return {name: f for name, f in named.items() if f.exact or not exact}


def window(c: Canvas, x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    kernel = tuple(c.integer(1, min(3, n)) for n in x.shape[2:])
    stride = tuple(c.integer(1, 3) for _ in kernel)
    padding = tuple(c.integer(0, min(1, k - 1)) for k in kernel)
    return kernel, stride, padding

"""Hypothesis strategies: machines, operator graphs and plans for them, small and of every kind there is.

They know no test: what a drawn plan should do is said elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from castile.planner import program
from castile.planner.graph import Graph, Node
from castile.planner.op import Init, Tensor, find
from castile.planner.ops.add import Add
from castile.planner.ops.linear import Linear
from castile.planner.strategy import Config, Strategy
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.task import NUM_LANES, Lane

MOST_PROCS = 4
MOST_PARTS = 6
MOST_ELEMENTS = 160

# Links on which one form or another wins: latency alone, bandwidth alone, neither.
LINKS = ((1e-3, 1e12), (1e-6, 1e6), (0.0, 1e15), (1e-5, 1e8))
ENGINES = (tuple(int(lane) for lane in Lane), (0,) * NUM_LANES, (0, 1, 1, 1, 0))


@st.composite
def machines(draw: DrawFn, most: int = MOST_PROCS) -> Machine:
    """One to four processors with one or two levels of links."""
    num_procs = draw(st.integers(1, most))
    processor = Processor("p", 1e9, draw(st.sampled_from((1e9, 1e14))), 2**30, 0, draw(st.sampled_from((0.0, 1e-6))))
    groups = [num_procs] if num_procs > 1 else []
    if num_procs > 2 and draw(st.booleans()):
        groups = [2, num_procs + num_procs % 2]
    levels = [Level(f"level{n}", group, *draw(st.sampled_from(LINKS))) for n, group in enumerate(groups)]
    return Machine("drawn", (processor,) * num_procs, tuple(levels), draw(st.sampled_from(ENGINES)))


# Graphs: layers are added to tensors drawn from those that are there; every leaf ends in the loss.


@dataclass
class Canvas:
    """A graph under construction; `exact` leaves out what rounds, `pool` are the tensors that layers may take."""

    draw: DrawFn
    exact: bool
    graph: Graph = field(default_factory=lambda: Graph("drawn", "float64"))
    pool: list[Tensor] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def name(self, kind: str) -> str:
        return f"{kind}{len(self.graph.nodes)}"

    def choose(self, fits: Callable[[Tensor], bool]) -> Tensor | None:
        found = [t for t in self.pool if fits(t)]
        # the latest first, so that chains are deep
        return self.draw(st.sampled_from(found[::-1])) if found else None

    def integer(self, lo: int, hi: int) -> int:
        return self.draw(st.integers(lo, hi))


Layer = Callable[[Canvas], Tensor | None]


def _linear(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) >= 2)
    if x is None:
        return None
    shared = [p for p in c.graph.params if len(p.shape) == 2 and p.shape[1] == x.shape[-1]]
    if shared and c.draw(st.booleans()):
        return c.graph.apply(Linear(), c.name("shared"), x, c.draw(st.sampled_from(shared)))
    return c.graph.linear(c.name("linear"), x, features=c.integer(1, 5), bias=c.draw(st.booleans()))


def _conv2d(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) == 4)
    if x is None:
        return None
    kernel, stride, padding = _window(c, x)
    channels, bias = c.integer(1, 4), c.draw(st.booleans())
    return c.graph.conv2d(c.name("conv"), x, channels, kernel, stride, padding, bias)


def _max_pool2d(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) == 4)
    return None if x is None else c.graph.max_pool2d(c.name("pool"), x, *_window(c, x))


def _window(c: Canvas, x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    kernel = tuple(c.integer(1, min(3, n)) for n in x.shape[2:])
    stride = tuple(c.integer(1, 3) for _ in kernel)
    padding = tuple(c.integer(0, min(1, k - 1)) for k in kernel)
    return kernel, stride, padding


def _relu(c: Canvas) -> Tensor | None:
    return c.graph.relu(c.name("relu"), c.draw(st.sampled_from(c.pool[::-1]))) if c.pool else None


def _gelu(c: Canvas) -> Tensor | None:
    if not c.pool:
        return None
    form = c.draw(st.sampled_from(("tanh", "none")))
    return c.graph.gelu(c.name("gelu"), c.draw(st.sampled_from(c.pool[::-1])), approximate=form)


def _layer_norm(c: Canvas) -> Tensor | None:
    # of a width below 3 it tells little more than signs
    x = c.choose(lambda t: t.shape[-1] > 2)
    return None if x is None else c.graph.layer_norm(c.name("norm"), x)


def _add(c: Canvas) -> Tensor | None:
    """A residual, a tensor twice, or a parameter that lacks leading dims."""
    x = c.draw(st.sampled_from(c.pool[::-1])) if c.pool else None
    if x is None:
        return None
    if c.draw(st.booleans()):
        other = c.draw(st.sampled_from([t for t in c.pool if t.shape == x.shape]))
        return c.graph.apply(Add(), c.name("sum"), x, other)
    shape = x.shape[c.integer(1, len(x.shape)) :]
    name = c.name("table")
    axes = tuple(f"t{n}" for n in range(len(shape)))
    return c.graph.add(c.name("shift"), x, c.graph.param(name, shape, axes, Init("zeros")))


def _embedding(c: Canvas) -> Tensor | None:
    g = c.graph
    name = c.name("tokens")
    shape = (c.integer(1, 4), c.integer(1, 4))
    rows = c.integer(2, 5)
    c.labels[name] = rows
    tokens = g.input(name, shape, "b s", "int64")
    return g.embedding(c.name("embedding"), tokens, rows=rows, features=c.integer(1, 6))


FLAT = {2: (), 3: ("a b c -> a (b c)", "a b c -> (a b) c"), 4: ("a b c d -> a (b c d)", "a b c d -> a b (c d)")}


def _reshape(c: Canvas) -> Tensor | None:
    x = c.choose(lambda t: len(t.shape) in (2, 3, 4))
    if x is None:
        return None
    texts = list(FLAT[len(x.shape)])
    sizes: dict[str, dict[str, int]] = {}
    if len(x.shape) < 4:
        inner = [n for n in range(1, x.shape[-1] + 1) if x.shape[-1] % n == 0]
        letters = "a b" if len(x.shape) == 3 else "a"
        texts.append(f"{letters} (e f) -> {letters} e f")
        sizes[texts[-1]] = {"f": c.draw(st.sampled_from(inner))}
    text = c.draw(st.sampled_from(texts))
    return c.graph.reshape(c.name("reshape"), x, text, **sizes.get(text, {}))


def _attention(c: Canvas) -> Tensor | None:
    q = c.choose(lambda t: len(t.shape) == 3)
    if q is None:
        return None
    keys = [t for t in c.pool if len(t.shape) == 3 and (t.shape[0], t.shape[2]) == (q.shape[0], q.shape[2])]
    key = c.draw(st.sampled_from(keys))
    value = c.draw(st.sampled_from([t for t in keys if t.shape == key.shape]))
    heads = c.draw(st.sampled_from([n for n in range(1, q.shape[2] + 1) if q.shape[2] % n == 0]))
    return c.graph.attention(c.name("attention"), q, key, value, heads=heads, causal=c.draw(st.booleans()))


EXACT: tuple[Layer, ...] = (_linear, _conv2d, _max_pool2d, _relu, _add, _reshape, _embedding)
LAYERS: tuple[Layer, ...] = (*EXACT, _gelu, _layer_norm, _attention)


def _source(c: Canvas) -> Tensor:
    kind = c.draw(st.sampled_from(("flat", "sequence", "image", "tokens")))
    if kind == "tokens":
        found = _embedding(c)
        assert found is not None
        return found
    axes = {"flat": "b i", "sequence": "b s i", "image": "b c h w"}[kind]
    shape = {
        "flat": lambda: (c.integer(1, 6), c.integer(1, 6)),
        "sequence": lambda: (c.integer(1, 4), c.integer(1, 4), c.integer(1, 6)),
        "image": lambda: (c.integer(1, 3), c.integer(1, 3), c.integer(2, 5), c.integer(2, 5)),
    }[kind]()
    return c.graph.input("x", shape, axes)


@dataclass(frozen=True)
class Problem:
    """A graph with all that it needs: how many integers each integer input takes its values from."""

    graph: Graph
    labels: dict[str, int]


@st.composite
def problems(draw: DrawFn, exact: bool = False, most_layers: int = 6) -> Problem:
    """A graph with at least one parameter, whose every branch ends in the loss."""
    c = Canvas(draw, exact)
    c.pool.append(_source(c))
    for layer in draw(st.lists(st.sampled_from(EXACT if exact else LAYERS), min_size=1, max_size=most_layers)):
        made = layer(c)
        if made is not None and prod(made.shape) <= MOST_ELEMENTS:
            c.pool.append(made)
    _close(c)
    return Problem(c.graph, c.labels)


def _close(c: Canvas) -> None:
    """Every leaf is summed or compared with labels; the loss is the sum of them all."""
    g = c.graph
    used = {name for node in g.nodes.values() for name in node.inputs}
    leaves = [g.tensors[n.outputs[0]] for n in g.nodes.values() if n.outputs[0] not in used]
    if not g.params:
        leaves = [t for t in leaves if t.shape != leaves[-1].shape] + [_last(c, leaves[-1] if leaves else c.pool[-1])]
        used = {name for node in g.nodes.values() for name in node.inputs}
        leaves = [g.tensors[n.outputs[0]] for n in g.nodes.values() if n.outputs[0] not in used]
    total = None
    for leaf in leaves:
        loss = _loss(c, leaf)
        total = loss if total is None else g.add(c.name("total"), total, loss)
    assert total is not None
    g.minimise(total)
    g.outputs = [leaves[-1].name]


def _last(c: Canvas, x: Tensor) -> Tensor:
    return c.graph.linear(c.name("linear"), x, features=c.integer(1, 4))


def _loss(c: Canvas, leaf: Tensor) -> Tensor:
    if c.exact or len(leaf.shape) < 2 or c.draw(st.booleans()):
        return c.graph.sum(c.name("total"), leaf)
    name = c.name("label")
    c.labels[name] = leaf.shape[-1]
    axes = " ".join(f"l{n}" for n in range(len(leaf.shape) - 1))
    return c.graph.cross_entropy(c.name("loss"), leaf, c.graph.input(name, leaf.shape[:-1], axes, "int64"))


# Plans.


@st.composite
def configs(draw: DrawFn, node: Node, num_procs: int) -> Config:
    """Any legal Config: uneven degrees, replicas, processors in any order, repeats from part to part."""
    a = node.alignment
    split: dict[str, int] = {}
    free = [axis for axis in a.axes if axis not in a.frozen and a.extents[axis] > 1]
    for axis in draw(st.lists(st.sampled_from(free), max_size=2, unique=True)) if free else []:
        most = min(a.extents[axis], MOST_PROCS, MOST_PARTS // prod(split.values()))
        if most > 1:
            split[axis] = draw(st.integers(2, most))
    replicas = draw(st.integers(1, num_procs))
    return Config(split, replicas, draw(placements(prod(split.values()), replicas, num_procs)))


@st.composite
def placements(draw: DrawFn, num_parts: int, replicas: int, num_procs: int) -> tuple[int, ...]:
    """Processors for each part's replicas: side by side in one order as far as they go, or anyhow."""
    order = draw(st.permutations(range(num_procs)))
    if draw(st.booleans()):
        return tuple(order[n % num_procs] for n in range(num_parts * replicas))
    parts = [draw(st.permutations(range(num_procs)))[:replicas] for _ in range(num_parts)]
    return tuple(proc for part in parts for proc in part)


@st.composite
def strategies(draw: DrawFn, graph: Graph, num_procs: int) -> Strategy:
    """A plan: every node by itself, or most cut along their first or last axis over one group of processors."""
    names = program.names(graph, find("sgd")())
    group = tuple(draw(st.permutations(range(num_procs)))[: draw(st.integers(1, num_procs))])
    axes = draw(st.sampled_from((("first",), ("last",), ("first", "last"), ())))
    chosen: dict[str, Config] = {}
    for name, node in names.nodes.items():
        plain = axes and draw(st.integers(0, 3)) > 0
        chosen[name] = regular(node, draw(st.sampled_from(axes)), group) if plain else draw(configs(node, num_procs))
    updates = [name for name in names.optional if name.endswith("/update")]
    wanted = st.one_of(st.lists(st.sampled_from(sorted(names.optional)), unique=True), st.just(updates))
    for name in draw(wanted):
        node, kinds = names.optional[name], ("first", "whole") if axes else ()
        plain = kinds and draw(st.booleans())
        chosen[name] = regular(node, draw(st.sampled_from(kinds)), group) if plain else draw(configs(node, num_procs))
    return Strategy(chosen)


def regular(node: Node, axis: str, group: Sequence[int]) -> Config:
    """Cut along its "first" or "last" axis, a part for each of the group; a replica each where that cannot be."""
    a = node.alignment
    free = [name for name in a.axes if name not in a.frozen and a.extents[name] > 1]
    if axis == "whole" or not free or len(group) < 2:
        return replicated(group)
    name = free[0 if axis == "first" else -1]
    degree = min(len(group), a.extents[name])
    return Config({name: degree}, 1, tuple(group[:degree]))


def replicated(group: Sequence[int]) -> Config:
    return Config({}, len(group), tuple(group))


def whole_on(graph: Graph, proc: int = 0) -> Strategy:
    """Everything on one processor."""
    return Strategy({name: Config({}, 1, (proc,)) for name in graph.nodes})


# Numbers.


def batches(problem: Problem, steps: int, exact: bool, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Inputs of each step: integers where the graph wants them, else normal numbers, or small integers."""
    rng = np.random.default_rng(seed)
    graph = problem.graph

    def fill(name: str) -> np.ndarray:
        tensor = graph.tensors[name]
        if name in problem.labels:
            return rng.integers(0, problem.labels[name], tensor.shape)
        return numbers(rng, tensor.shape, exact)

    return [{name: fill(name) for name in graph.inputs} for _ in range(steps)]


def beginnings(problem: Problem, exact: bool, seed: int = 1) -> dict[str, np.ndarray]:
    """A value for every parameter; none is zero everywhere, so that relative differences mean something."""
    rng = np.random.default_rng(seed)
    return {t.name: numbers(rng, t.shape, exact) for t in problem.graph.params}


def numbers(rng: np.random.Generator, shape: tuple[int, ...], exact: bool) -> np.ndarray:
    if exact:
        return rng.integers(-3, 4, shape).astype(np.float64)
    return rng.normal(size=shape)

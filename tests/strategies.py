"""Hypothesis strategies: machines, operator graphs and plans for them, small and of every kind there is.

They know no test: what a drawn plan should do is said elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import msgspec
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from castile.planner.families.updates import Updates
from castile.planner.graph import Graph, Node
from castile.planner.op import Tensor, find
from castile.planner.step import beside
from castile.planner.step.program import fetch_name
from castile.planner.strategy import ORDERS, Config, Strategy
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.task import NUM_LANES, Lane
from tests.draws import among, ordered, some
from tests.layers import Canvas, Layer, layers

MOST_PROCS = 4
SGD = Updates(find("sgd")())
MOST_PARTS = 6
MOST_ELEMENTS = 160

# Links on which one form or another wins: latency alone, bandwidth alone, neither.
LINKS = ((1e-3, 1e12), (1e-6, 1e6), (0.0, 1e15), (1e-5, 1e8))
ENGINES = (tuple(int(lane) for lane in Lane), (0,) * NUM_LANES, (0, 1, 1, 1, 0))


@st.composite
def machines(draw: DrawFn, most: int = MOST_PROCS) -> Machine:
    """One to four processors with one or two levels of links, some of them shared."""
    # one processor has nothing to send: most draws have more
    num_procs = draw(among((*range(2, most + 1), *range(1, most + 1))))
    processor = Processor("p", 1e9, draw(among((1e9, 1e14))), 2**30, 0, draw(among((0.0, 1e-6))))
    groups = [num_procs] if num_procs > 1 else []
    if num_procs > 2 and draw(st.booleans()):
        groups = [2, num_procs + num_procs % 2]
    drawn = [(group, *draw(among(LINKS)), draw(among((1, 1, 2)))) for group in groups]
    levels = [Level(f"level{n}", *figures) for n, figures in enumerate(drawn)]
    return Machine("drawn", (processor,) * num_procs, tuple(levels), draw(among(ENGINES)))


SOURCES = ("flat", "sequence", "image")

# Graphs: layers are added to tensors drawn from those that are there; every leaf ends in the loss.


@dataclass(frozen=True)
class Problem:
    """A graph with all that it needs: how many integers each integer input takes its values from."""

    graph: Graph
    labels: dict[str, int]


@st.composite
def problems(
    draw: DrawFn, exact: bool = False, most_layers: int = 6, featured: str = "", batch: int | None = None
) -> Problem:
    """A graph with at least one parameter, whose every branch ends in the loss.

    featured   an operator that it must hold, with layers before it
    batch      samples a step; any by default
    """
    c = Canvas(draw, exact, batch or draw(st.integers(1, 4)))
    known = layers(exact)
    names = draw(st.lists(among(tuple(sorted(known))), min_size=1, max_size=most_layers))
    kinds = draw(ordered(SOURCES))
    c.source(kinds[0])
    for name in names[: most_layers // 2] if featured else names:
        _grow(c, known[name])
    if featured:
        # a tensor that it takes comes with one source or another
        while not _grow(c, known[featured]) and len(kinds) > 1:
            kinds = kinds[1:]
            c.source(kinds[0])
        assume(any(n.op.name == featured for n in c.graph.nodes.values()))
    _close(c)
    return Problem(c.graph, c.labels)


def _grow(c: Canvas, layer: Layer) -> bool:
    made = layer(c)
    if made is not None and prod(made.shape) <= MOST_ELEMENTS:
        c.pool.append(made)
    return made is not None


def _close(c: Canvas) -> None:
    """Every leaf is summed or compared with labels; the loss is the sum of them all."""
    g = c.graph
    leaves = _leaves(g)
    if not g.params:
        c.graph.linear(c.name("linear"), leaves[-1] if leaves else c.pool[-1], features=c.integer(1, 4))
        leaves = _leaves(g)
    total = None
    for leaf in leaves:
        loss = _loss(c, leaf)
        total = loss if total is None else g.add(c.name("total"), total, loss)
    assert total is not None
    g.minimise(total)
    g.outputs = [leaves[-1].name]


def _leaves(g: Graph) -> list[Tensor]:
    """First results that nobody reads."""
    used = {name for node in g.nodes.values() for name in node.inputs}
    found = [g.tensors[n.outputs[0]] for n in g.nodes.values() if n.outputs[0] not in used]
    return [t for t in found if t.floating]


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
    for axis in draw(some(tuple(free), 2)) if free else []:
        most = min(a.extents[axis], MOST_PROCS, MOST_PARTS // prod(split.values()))
        if most > 1:
            split[axis] = draw(st.integers(2, most))
    replicas = draw(st.integers(1, num_procs))
    return Config(split, replicas, draw(placements(prod(split.values()), replicas, num_procs)))


@st.composite
def placements(draw: DrawFn, num_parts: int, replicas: int, num_procs: int) -> tuple[int, ...]:
    """Processors for each part's replicas: side by side in one order as far as they go, or anyhow."""
    order = draw(ordered(range(num_procs)))
    if draw(st.booleans()):
        return tuple(order[n % num_procs] for n in range(num_parts * replicas))
    parts = [draw(ordered(range(num_procs)))[:replicas] for _ in range(num_parts)]
    return tuple(proc for part in parts for proc in part)


@st.composite
def strategies(draw: DrawFn, graph: Graph, num_procs: int, updates: Updates = SGD) -> Strategy:
    """A plan: every node by itself, or most cut along their first or last axis over one group of processors."""
    names = beside.names(graph, updates)
    group = tuple(draw(ordered(range(num_procs)))[: draw(st.integers(1, num_procs))])
    axes = draw(among((("first",), ("last",), ("first", "last"), ())))
    chosen: dict[str, Config] = {}
    for name, node in names.nodes.items():
        plain = axes and draw(st.integers(0, 3)) > 0
        chosen[name] = regular(node, draw(among(axes)), group) if plain else draw(configs(node, num_procs))
    updates = [name for name in names.optional if name.endswith("/update")]
    wanted = st.one_of(some(tuple(sorted(names.optional))), st.just(updates))
    for name in draw(wanted):
        node, kinds = names.optional[name], ("first", "whole") if axes else ()
        plain = kinds and draw(st.booleans())
        chosen[name] = regular(node, draw(among(kinds)), group) if plain else draw(configs(node, num_procs))
    return Strategy(chosen)


@st.composite
def recomputed(draw: DrawFn, graph: Graph) -> tuple[str, ...]:
    """Nodes whose results, and parameters that, are not kept for gradients: none, some, or all but some."""
    every = [*graph.nodes, *(fetch_name(param.name) for param in graph.params)]
    picked, way = draw(some(tuple(sorted(every)))), draw(st.integers(0, 3))
    return tuple(picked) if way == 2 else tuple([n for n in every if n not in picked]) if way == 3 else ()


@st.composite
def in_buckets(draw: DrawFn, graph: Graph, num_procs: int, updates: Updates = SGD) -> Strategy:
    """A plan whose sums may go in buckets, of a few, of all, or none, its kernels in any order, any computed again."""
    strategy, size = draw(strategies(graph, num_procs, updates)), draw(among((0, 200, 2**20)))
    order, again = draw(among(ORDERS)), draw(recomputed(graph))
    return msgspec.structs.replace(strategy, bucket_bytes=size, order=order, recompute=again)


@st.composite
def staged(draw: DrawFn, graph: Graph, num_procs: int) -> Strategy:
    """A plan in two stages or more, in order or come back to; within one nodes lie on its processors anyhow."""
    num_stages, every = draw(st.integers(2, num_procs)), draw(ordered(range(num_procs)))
    groups = [every[first::num_stages] for first in range(num_stages)]
    drawn = [draw(st.integers(0, num_stages - 1)) for _ in graph.nodes]
    group = [groups[n] for n in (sorted(drawn) if draw(st.booleans()) else drawn)]
    inner = [draw(configs(node, len(of))) for node, of in zip(graph.nodes.values(), group)]
    moved = [Config(c.split, c.replicas, tuple([of[p] for p in c.procs])) for c, of in zip(inner, group)]
    order, recompute = draw(among(ORDERS)), draw(recomputed(graph))
    return Strategy(dict(zip(graph.nodes, moved)), order=order, recompute=recompute)


@st.composite
def in_microbatches(draw: DrawFn, plan: Strategy, count: int) -> Strategy:
    """The plan with its batch cut into so many, of which processors begin none ahead or a few."""
    return msgspec.structs.replace(plan, microbatches=count, ahead=draw(st.integers(0, 3)))


def regular(node: Node, axis: str, group: Sequence[int]) -> Config:
    """Cut along its "first" or "last" axis, a part for each of the group; a replica each where that cannot be."""
    a = node.alignment
    free = [name for name in a.axes if name not in a.frozen and a.extents[name] > 1]
    if axis == "whole" or not free or len(group) < 2:
        return replicated(group)
    name = free[0 if axis == "first" else -1]
    degree = min(len(group), a.extents[name])
    return Config({name: degree}, 1, tuple(group[:degree]))


@st.composite
def in_groups(draw: st.DrawFn, graph: Graph, num_procs: int) -> dict[str, Config]:
    """Regular Configs, most over all processors, others over every other one: few roles, few sums."""
    groups = [range(first, num_procs, step) for step in (1, 2) for first in range(step) if step < num_procs]
    drawn = {name: draw(st.sampled_from(groups)) if draw(st.integers(0, 2)) > 1 else groups[0] for name in graph.nodes}
    return {name: regular(graph.nodes[name], "first", group) for name, group in drawn.items()}


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

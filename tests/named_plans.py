"""Named plans of a small network: every transfer form, every way of keeping parameters, any number of processors.

They know no test and no communicator.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from castile.planner.graph import Graph, Node
from castile.planner.lower import Lowering
from castile.planner.op import Init
from castile.planner.ops.linear import Linear
from castile.planner.strategy import Config, Strategy
from castile.runtime.machine import Level, Machine, Processor
from tests.strategies import Problem, batches, beginnings, regular, replicated

STEPS = 3


def network() -> Problem:
    """Convolution, pooling, tokens, attention, a shared table and a residual, small enough for every plan."""
    g = Graph("network", "float64")
    image, tokens = g.input("image", (4, 3, 9, 8), "b c h w"), g.input("tokens", (4, 6), "b s", "int64")
    x = g.max_pool2d("pool", g.relu("relu", g.conv2d("conv", image, 5, 3, (2, 1), 1)), 2, (2, 2), (1, 0))
    x = g.linear("enter", g.reshape("rows", x, "b c h w -> b c (h w)"), features=8)
    t = g.embedding("table", tokens, rows=7, features=8)
    t = g.add("place", t, g.param("positions", (6, 8), ("s", "d"), Init("zeros")))
    x = g.layer_norm("norm", g.attention("attention", t, x, x, heads=2))
    x = g.add("residual", t, g.gelu("gelu", g.linear("up", x, features=8)))
    logits = g.apply(Linear(), "head", x, g.tensors["table.weight"])
    label = g.input("label", (4, 6), "b s", "int64")
    g.minimise(g.cross_entropy("loss", logits, label))
    g.outputs = ["head"]
    return Problem(g, {"tokens": 7, "label": 7})


def links(num_procs: int) -> Machine:
    """Without latency, so that collectives are taken for large and small."""
    processor = Processor("p", 1e9, 1e14, 2**30, 0, 1e-5)
    levels = (Level("links", num_procs, 0.0, 1e12),) if num_procs > 1 else ()
    return Machine("links", (processor,) * num_procs, levels)


def plans(problem: Problem, num_procs: int) -> dict[str, Strategy]:
    """The plans by name."""
    nodes = problem.graph.nodes
    everyone = tuple(range(num_procs))
    names = Lowering(problem.graph, links(num_procs)).names
    kinds = {kind: [n for n in names.optional if n.endswith("/" + kind)] for kind in ("update", "fetch", "accumulate")}

    def each(axis: str, of: Iterable[Node]) -> dict[str, Config]:
        return {node.name: regular(node, axis, everyone) for node in of}

    def all_of(kind: str, axis: str) -> dict[str, Config]:
        return each(axis, [names.optional[name] for name in kinds[kind]])

    data, model, copies = (each(axis, nodes.values()) for axis in ("first", "last", "whole"))
    whole = {n: Config() for n in nodes}
    rng = np.random.default_rng(num_procs)
    turned = {n: Config(c.split, c.replicas, (*c.procs[1:], c.procs[0])) for n, c in data.items()}
    mixed = {n: (data if i % 2 else model)[n] for i, n in enumerate(nodes)}
    found = {
        "one": whole,
        "data": data,
        "replicas": copies,
        "model": model,
        "mixed": mixed,
        "turned": mixed | {n: turned[n] for n in list(nodes)[::3]},
        "sharded update": data | all_of("update", "first"),
        "sharded accumulate": data | all_of("update", "first") | all_of("accumulate", "first"),
        "whole accumulate": data | all_of("update", "last") | all_of("accumulate", "whole"),
        "sharded home": data | all_of("update", "first") | all_of("fetch", "whole"),
        "home on one": data | {n: Config() for n in kinds["update"]},
        "fetched from one": data | {n: Config() for n in kinds["update"]} | all_of("fetch", "whole"),
        "last updates": model | all_of("update", "last"),
        "contracted": data | {n: _cut(nodes[n], "i", everyone) for n in ("conv", "enter", "up", "head")},
        "chain": {n: Config({}, 1, (i % num_procs,)) for i, n in enumerate(nodes)},
        "all on the last": {n: Config({}, 1, (num_procs - 1,)) for n in nodes},
        "anyhow": {n: _anyhow(node, rng, num_procs) for n, node in nodes.items()},
    }
    plain = {name: Strategy(configs) for name, configs in found.items()}
    return plain | {
        f"{name} in buckets": Strategy(found[name], bucket_bytes=2**20)
        for name in ("one", "data", "mixed", "sharded update", "sharded home")
    }


def _cut(node: Node, axis: str, procs: tuple[int, ...]) -> Config:
    degree = min(len(procs), node.alignment.extents[axis])
    return Config({axis: degree}, 1, procs[:degree]) if degree > 1 else replicated(procs[:1])


def _anyhow(node: Node, rng: np.random.Generator, num_procs: int) -> Config:
    """Uneven parts along some axis on any processors, with repeats."""
    free = [a for a in node.alignment.axes if a not in node.alignment.frozen and node.alignment.extents[a] > 1]
    if not free:
        return Config({}, 1, (int(rng.integers(num_procs)),))
    axis = free[int(rng.integers(len(free)))]
    degree = min(3, node.alignment.extents[axis])
    return Config({axis: degree}, 1, tuple(int(p) for p in rng.integers(num_procs, size=degree)))


def numbers(problem: Problem) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """The inputs of each step, and how parameters begin."""
    return batches(problem, STEPS, exact=False), beginnings(problem, exact=False)

"""Little graphs and machines whose plans can be counted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from castile.planner.choices.space import space_of
from castile.planner.cost import CostModel
from castile.planner.evaluation.folding import Folded
from castile.planner.evaluation.simulated_step import SimulatedStep, WrittenTasks
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph
from castile.planner.known.seeds import seeds
from castile.planner.lower import Lowering
from castile.planner.ops.linear import Linear
from castile.planner.search import Evaluator, Run, parse_budget
from castile.planner.searches import available, find
from castile.planner.simulate import Simulated
from castile.planner.strategy import Config, Strategy
from castile.runtime.machine import Level, Machine, Processor
from castile.runtime.task import Lane, TaskGraph

# Every search that looks for plans, and one that insists on a known plan.
SEARCHES = (*available(), "megatron")


def described(memory_bytes: int, count: int = 2, kind: str = "small") -> str:
    """The file of a machine of so many processors, each with so much memory."""
    return f"""
[[processor]]
count = {count}
kind = "{kind}"
flops_per_second = 1e10
bytes_per_second = 1e10
memory_bytes = {memory_bytes}

[[level]]
name = "link"
latency_seconds = 1e-6
bytes_per_second = 1e9
"""


def one_layer() -> Graph:
    g = Graph("one", "float64")
    x = g.input("x", (4, 40), "b i")
    y = g.input("label", (4,), "b", "int64")
    h = g.linear("fc", x, features=30)
    g.minimise(g.cross_entropy("loss", h, y))
    g.outputs = [h.name]
    return g


def two_layers(batch: int = 6, width: int = 8) -> Graph:
    g = Graph("two", "float64")
    x = g.input("x", (batch, 6), "b i")
    y = g.input("label", (batch,), "b", "int64")
    h = g.linear("down", g.relu("act", g.linear("up", x, features=width)), features=4)
    g.minimise(g.cross_entropy("loss", h, y))
    g.outputs = [h.name]
    return g


def residual() -> Graph:
    """Shared input, a branch, and a parameter that two nodes use."""
    g = Graph("residual", "float64")
    x = g.input("x", (4, 8), "b i")
    y = g.input("label", (4,), "b", "int64")
    a = g.linear("block1.fc", x, features=8)
    b = g.relu("block1.act", a)
    c = g.apply(Linear(), "block2.fc", b, g.tensors["block1.fc.weight"])
    h = g.add("sum", g.relu("block2.act", c), a)
    g.minimise(g.cross_entropy("loss", h, y))
    g.outputs = [h.name]
    return g


def two_towers(width: int = 64) -> Graph:
    """Two layers beside each other, and their sum."""
    g = Graph("towers", "float64")
    x = g.input("x", (64, width), "b i")
    y = g.input("label", (64,), "b", "int64")
    left, right = g.linear("left", x, features=64), g.linear("right", x, features=64)
    g.minimise(g.cross_entropy("loss", g.add("sum", left, right), y))
    return g


def tower(layers: int, batch: int = 8) -> Graph:
    """Equal layers one after the other."""
    g = Graph("tower", "float32")
    x = g.input("x", (batch, 16), "b i")
    y = g.input("label", (batch,), "b", "int64")
    for n in range(layers):
        x = g.relu(f"act{n}", g.linear(f"fc{n}", x, features=16))
    g.minimise(g.cross_entropy("loss", x, y))
    return g


GRAPHS = {
    "one": one_layer(),
    "two": two_layers(),
    "uneven": two_layers(5, 7),
    "residual": residual(),
    "towers": two_towers(4),
}


def machine(procs: int, latency: float = 1e-6, rate: float = 1e9, memory: int = 2**30, flops: float = 1e8) -> Machine:
    levels = (Level("link", procs, latency, rate),) if procs > 1 else ()
    return Machine("little", (Processor("cpu", flops, 1e9, memory, task_overhead_seconds=1e-7),) * procs, levels)


def evaluator(graph: Graph, on: Machine, updates: Updates | None = None, microbatches: int = 1) -> Evaluator:
    return Evaluator(Lowering(graph, on, updates, microbatches=microbatches), CostModel(on))


def run(same: Evaluator, budget: str = "100", seed: int = 0) -> Run:
    """A search under way that has seen the seeds."""
    known = {name: same.evaluate(plan) for name, plan in seeds(same.lowering).items()}
    return Run(same, parse_budget(budget), random.Random(seed), known)


def drawn(graph: Graph, num_procs: int, rng: random.Random) -> dict[str, Config]:
    """Any plan of equal processors."""
    return {name: space_of(node, num_procs).draw(rng) for name, node in graph.nodes.items()}


def proposed(name: str, same: Evaluator, budget: str) -> list[dict[str, Config]]:
    """What a search proposes, in order."""
    under_way, seen = run(same, budget), []
    propose = under_way.propose

    def watch(configs, most=float("inf")):
        seen.append(dict(configs))
        return propose(configs, most)

    under_way.propose = watch  # type: ignore[method-assign]
    find(name, same.lowering).search(under_way)
    return seen


def all_seen(tasks: TaskGraph, simulated: Simulated, engines: Sequence[int] = tuple(Lane)) -> SimulatedStep:
    """A task graph of no plan that was simulated, all of it written out."""
    every, procs = np.arange(tasks.num_tasks), np.arange(tasks.num_procs)
    folded = Folded(tasks, procs, procs, every, every, np.ones_like(every), tuple)
    lowering = Lowering(Graph("none", "float64"), replace(machine(tasks.num_procs), engines=tuple(engines)))
    written = WrittenTasks(lowering, folded, np.full(tasks.num_tasks, -1))
    return SimulatedStep(Strategy({}), written, tasks, simulated, folded.count, simulated.peak_bytes)

"""Seeds: the plans that everyone knows. Searches start from them, and must not end behind them.

It does not know what they cost.
"""

from __future__ import annotations

from math import prod

from castile.planner.graph import Graph, Node
from castile.planner.lower import Lowering
from castile.planner.strategy import Config, Strategy

SAMPLES = "b"


def seeds(lowering: Lowering) -> dict[str, Strategy]:
    """The known plans of a graph on a machine by name, data_parallel first; of equal ones the first."""
    graph, num_procs = lowering.piece, lowering.machine.num_procs
    plans = {"data_parallel": data_parallel(graph, num_procs), "one_processor": one_processor(graph)}
    plans["one_weird_trick"] = one_weird_trick(graph, num_procs)
    fewer = num_procs // 2
    while fewer > 1:
        plans[f"data_parallel_{fewer}"] = data_parallel(graph, fewer)
        fewer //= 2
    distinct: dict[str, Strategy] = {}
    for name, configs in plans.items():
        if all(configs != known.configs for known in distinct.values()):
            distinct[name] = stamped(lowering, configs, name)
    return distinct


def stamped(lowering: Lowering, configs: dict[str, Config], search: str, seed: int = 0) -> Strategy:
    """The plan of these Configs, which says what it was made for and by which search."""
    graph, machine = lowering.graph, lowering.machine
    return Strategy(
        configs,
        lowering.microbatches,
        graph.name,
        graph.fingerprint,
        machine.fingerprint,
        machine.num_procs,
        search,
        seed,
    )


def one_processor(graph: Graph) -> dict[str, Config]:
    """Everything on processor 0."""
    return {name: Config() for name in graph.nodes}


def data_parallel(graph: Graph, num_procs: int) -> dict[str, Config]:
    """Every node cut along the samples, as often as that goes; nodes without samples are done by all alike."""
    return {name: _along(node, SAMPLES, num_procs) for name, node in graph.nodes.items()}


def one_weird_trick(graph: Graph, num_procs: int) -> dict[str, Config]:
    """Nodes with more parameters than results are cut along their output channels, the others along the samples.

    Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014.
    """
    return {name: _along(node, _weird_axis(graph, node), num_procs) for name, node in graph.nodes.items()}


def _weird_axis(graph: Graph, node: Node) -> str:
    params = [t for t in map(graph.tensors.__getitem__, node.inputs) if t.param]
    of_params = {axis for o in node.alignment.operands if o.param for axis in o.axes}
    channels = [a for a in node.alignment.results[0].axes if a in of_params and a not in node.alignment.frozen]
    is_heavy = sum(prod(t.shape) for t in params) > prod(graph.tensors[node.outputs[0]].shape)
    return channels[-1] if channels and is_heavy else SAMPLES


def _along(node: Node, axis: str, num_procs: int) -> Config:
    a = node.alignment
    degree = 1 if axis in a.frozen else min(num_procs, a.extents.get(axis, 1))
    if degree > 1:
        return Config({axis: degree}, 1, tuple(range(degree)))
    return Config({}, num_procs, tuple(range(num_procs)))

"""Coverage: plans in which every node takes each of its splits, so that their tasks are all that a search may ask for.

It does not know which plans are any good, nor which of their tasks were measured.
"""

from __future__ import annotations

from castile.planner.choices.space import degrees, free_axes, splits
from castile.planner.graph import Node
from castile.planner.known.seeds import stamped
from castile.planner.lower import Lowering
from castile.planner.step.program import update_name
from castile.planner.strategy import Config, Strategy

# What plans are called that together have all splits.
ALL = "all splits"


def plans(lowering: Lowering) -> dict[str, Strategy]:
    """Plans that together give every node, and every update of a parameter, each of its splits.

    There are as many as the node with the most splits has; a node with fewer repeats its own. The batch is cut into as
    many microbatches as the lowering has.
    """
    graph, num_procs = lowering.piece, lowering.machine.num_procs
    names = [update_name(param.name) for param in graph.params]
    nodes: dict[str, Node] = {**graph.nodes, **{name: lowering.names.optional[name] for name in names}}
    found = {name: splits(free_axes(node), num_procs, degrees(num_procs)) for name, node in nodes.items()}
    longest = max(map(len, found.values()))
    return {
        f"{ALL}, {number + 1} of {longest}": stamped(
            lowering, {name: _everywhere(each[number % len(each)], num_procs) for name, each in found.items()}, "all"
        )
        for number in range(longest)
    }


def _everywhere(split: dict[str, int], num_procs: int) -> Config:
    """The split with so many replicas that all processors work; one replica where its parts do not divide their number.
    """
    parts = Config(split).num_parts
    replicas = 1 if num_procs % parts else num_procs // parts
    return Config(dict(split), replicas, tuple(range(parts * replicas)))

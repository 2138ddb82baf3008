"""Dropped results: those that are not kept after forward passes but recomputed where gradient passes read them.

Results of any node may be dropped, and so may fetches of parameters. They are recomputed by the same parts on the same
processors, with dropped results that these read in turn. It does not know how nodes are chosen, nor processors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from castile.planner.graph import Graph, Node
from castile.planner.step.beside import apart
from castile.planner.step.handed import recorded
from castile.planner.step.program import fetch_name


class Reads:
    """The operands and results that gradient passes read, found once for all nodes that record the same calls."""

    def __init__(self, graph: Graph) -> None:
        self._tensors = graph.tensors
        self._known: dict[object, tuple[int, ...]] = {}

    def of(self, node: Node, which: str) -> list[str]:
        """The tensors that a gradient pass reads, other than gradients."""
        key = type(node.op), node.op.recorded_settings, node.alignment, which
        if key not in self._known:
            self._known[key] = recorded(node, self._tensors, which).reads
        given, flows = (*node.inputs, *node.outputs), node.op.flows
        return [given[n - flows] for n in self._known[key] if n >= flows]


class Dropped:
    """The dropped tensors of a graph, and which nodes recompute them.

    names     the nodes whose results are dropped, and fetches of parameters
    fetched   by parameter its fetch, if that is among them
    """

    def __init__(self, graph: Graph, names: Collection[str]) -> None:
        self._reads = Reads(graph)
        self._place = {name: n for n, name in enumerate(graph.nodes)}
        self._maker = {t: node for name, node in graph.nodes.items() if name in names for t in node.outputs}
        self.fetched = {p.name: apart("fetch", p) for p in graph.params if fetch_name(p.name) in names}
        self._tensors = frozenset([*self._maker, *self.fetched])

    def taken(self, node: Node) -> frozenset[str]:
        """The dropped tensors among a node's operands."""
        return self._tensors.intersection(node.inputs)

    def read(self, node: Node, which: str) -> frozenset[str]:
        """The dropped tensors that a gradient pass reads."""
        if self._tensors.isdisjoint((*node.inputs, *node.outputs)):
            return frozenset()
        return self._tensors.intersection(self._reads.of(node, which))

    def nodes(self, tensors: Iterable[str]) -> list[Node]:
        """The nodes that recompute these tensors, in the graph's order."""
        found: dict[str, Node] = {}
        left = [self._maker[t] for t in tensors if t in self._maker]
        while left:
            node = left.pop()
            if node.name not in found:
                found[node.name] = node
                left += [self._maker[t] for t in self.taken(node) if t in self._maker]
        return sorted(found.values(), key=lambda node: self._place[node.name])

    def params(self, tensors: Iterable[str]) -> list[str]:
        """The parameters that are fetched to recompute these tensors."""
        read = [*tensors, *(t for node in self.nodes(tensors) for t in node.inputs)]
        return list(dict.fromkeys([t for t in read if t in self.fetched]))

"""Results that are dropped after the forward passes, and computed again where gradient passes read them.

Any nodes may be such: what a pass reads of theirs, and what that takes in turn, is computed by the same parts on the
same processors once more. So may fetches of parameters be. It does not know who chose them, nor processors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from castile.planner.graph import Graph, Node
from castile.planner.step.beside import apart
from castile.planner.step.handed import recorded
from castile.planner.step.program import fetch_name


class Reads:
    """Which operands and results gradient passes of a graph's nodes read, found once for those that record the same."""

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
    """What is read for gradients that is not kept, and which nodes are computed for it.

    names     the nodes whose results are dropped
    fetched   of those the fetches of parameters, by these
    """

    def __init__(self, graph: Graph, names: Collection[str]) -> None:
        self._reads = Reads(graph)
        self._place = {name: n for n, name in enumerate(graph.nodes)}
        self._maker = {t: node for name, node in graph.nodes.items() if name in names for t in node.outputs}
        self.fetched = {p.name: apart("fetch", p) for p in graph.params if fetch_name(p.name) in names}
        self._tensors = frozenset([*self._maker, *self.fetched])

    def taken(self, node: Node) -> frozenset[str]:
        """Of what a node takes that which is dropped."""
        return self._tensors.intersection(node.inputs)

    def read(self, node: Node, which: str) -> frozenset[str]:
        """Of what a gradient pass reads that which is dropped."""
        if self._tensors.isdisjoint((*node.inputs, *node.outputs)):
            return frozenset()
        return self._tensors.intersection(self._reads.of(node, which))

    def nodes(self, tensors: Iterable[str]) -> list[Node]:
        """Those of the graph that are computed for some of these, in its order."""
        found: dict[str, Node] = {}
        left = [self._maker[t] for t in tensors if t in self._maker]
        while left:
            node = left.pop()
            if node.name not in found:
                found[node.name] = node
                left += [self._maker[t] for t in self.taken(node) if t in self._maker]
        return sorted(found.values(), key=lambda node: self._place[node.name])

    def params(self, tensors: Iterable[str]) -> list[str]:
        """Those that are fetched for some of these."""
        read = [*tensors, *(t for node in self.nodes(tensors) for t in node.inputs)]
        return list(dict.fromkeys([t for t in read if t in self.fetched]))

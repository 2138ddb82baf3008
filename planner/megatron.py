"""Pairs of matrices: which nodes are cut across the features so that what flows between them stays where it is.

The first of a pair is cut along its results' features, the second along the features that it contracts, and all
between the two along what corresponds; only the second's results are sums over processors (Shoeybi et al., 2019). It
does not know processors or samples.
"""

from __future__ import annotations

from castile.planner.graph import Graph, Node

# Axes of samples are cut otherwise.
SAMPLES = "b"


def tensor_cuts(graph: Graph, width: int) -> dict[str, str]:
    """The axis of each node that is cut so, by the node's name; only axes of at least `width` elements are."""
    return _Pairs(graph, width).found()


class _Pairs:
    def __init__(self, graph: Graph, width: int) -> None:
        self.graph, self.width = graph, width
        self.users: dict[str, list[Node]] = {}
        for node in graph.nodes.values():
            for tensor in dict.fromkeys(node.inputs):
                self.users.setdefault(tensor, []).append(node)

    def found(self) -> dict[str, str]:
        """Nodes in the order of the graph, each by what flows into it: a first, a second, or one between."""
        cuts: dict[str, str] = {}
        cut_dims: dict[str, int] = {}
        for node in self.graph.nodes.values():
            arriving = {t: cut_dims[t] for t in node.inputs if t in cut_dims}
            axis = self._carried(node, arriving) if arriving else self._first(node)
            if axis:
                cuts[node.name] = axis
                cut_dims.update(_bearing(node, axis))
        return cuts

    def _first(self, node: Node) -> str:
        """The axis of results that a node with a matrix is cut along, if it has a partner; else ""."""
        if not self._matrix(node):
            return ""
        a = node.alignment
        of_params = {axis for o in a.operands if o.param for axis in o.axes}
        for axis in reversed(a.results[0].axes):
            if axis in of_params and self._is_free(node, axis) and self._has_partner(node, axis):
                return axis
        return ""

    def _matrix(self, node: Node) -> bool:
        """Whether a parameter has several axes and none that must stay whole, as windows and tables have."""
        a = node.alignment
        return any(o.param and len(o.dims) > 1 and not a.frozen.intersection(o.axes) for o in a.operands)

    def _has_partner(self, node: Node, axis: str) -> bool:
        """Whether what flows from this cut ends at seconds only, through nodes that can be cut alike."""
        bearing = _bearing(node, axis)
        if set(bearing) != set(node.outputs[:1]) and node.outputs[0] not in bearing:
            return False
        waiting, met = [(t, d) for t, d in bearing.items() if self.users.get(t)], False
        while waiting:
            tensor, dim = waiting.pop()
            for user in self.users.get(tensor, []):
                along = self._carried(user, {tensor: dim})
                if not along:
                    return False
                met = met or self._contracts(user, along)
                waiting += [] if self._contracts(user, along) else list(_bearing(user, along).items())
        return met

    def _carried(self, node: Node, arriving: dict[str, int]) -> str:
        """The axis of a node along which what arrives is cut, if it is one and may be; else ""."""
        a = node.alignment
        axes = {o.dims[arriving[t]][0] for t, o in zip(node.inputs, a.operands, strict=True) if t in arriving}
        axis = axes.pop() if len(axes) == 1 else ""
        has_params = any(o.param and len(o.dims) > 1 for o in a.operands)
        between = not has_params or (axis and self._matrix(node) and self._contracts(node, axis))
        return axis if axis and between and self._is_free(node, axis) else ""

    def _contracts(self, node: Node, axis: str) -> bool:
        """Whether results are sums over the axis, which a parameter bears too."""
        a = node.alignment
        return not _bearing(node, axis) and any(o.param and axis in o.axes for o in a.operands)

    def _is_free(self, node: Node, axis: str) -> bool:
        a = node.alignment
        return axis != SAMPLES and axis not in a.frozen and a.extents[axis] >= self.width


def _bearing(node: Node, axis: str) -> dict[str, int]:
    """The results that are cut with an axis, and which dim of each."""
    found = {}
    for tensor, operand in zip(node.outputs, node.alignment.results, strict=True):
        for dim, names in enumerate(operand.dims):
            if names and names[0] == axis:
                found[tensor] = dim
    return found

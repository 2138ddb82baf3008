"""Pairs of matrices: which nodes are cut across the features so that what flows between them stays where it is.

The first of a pair is cut along its results' features, the second along the features that it contracts, and all
between the two along what corresponds; only the second's results are sums over processors (Shoeybi et al., 2019). A
loss that looks at blocks of classes is a second too, of which little is left, and where there are pairs, tables are cut
along the rows that integers name. It does not know processors or samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import inf, prod

from castile.planner.graph import Graph, Node
from castile.planner.known.experts import experts
from castile.planner.known.heads import SAMPLES, heads


class TensorCuts:
    """The cuts of a graph by width, looked for once for all widths that no axis tells apart."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._known: list[tuple[_Pairs, dict[str, str]]] = []

    @cached_property
    def experts(self) -> dict[str, str]:
        """The axis of each node that is cut by experts, whatever the width, by the node's name."""
        return experts(self.graph)

    @cached_property
    def heads(self) -> dict[str, str]:
        """The axis of each node that attends by heads, by the node's name."""
        return heads(self.graph)

    def of(self, width: int) -> dict[str, str]:
        """The axis of each node that is cut so, by the node's name; only axes of at least `width` elements are."""
        for pairs, cuts in self._known:
            if pairs.refused < width <= pairs.taken:
                return cuts
        pairs = _Pairs(self.graph, width)
        self._known.append((pairs, pairs.cuts()))
        return self._known[-1][1]


class _Pairs:
    """The pairs for one width.

    refused, taken   the most elements of an axis that were too few, and the fewest that were enough
    """

    def __init__(self, graph: Graph, width: int) -> None:
        self.graph, self.width = graph, width
        self.refused, self.taken = 0.0, inf
        self._firsts: dict[str, tuple[str, bool]] = {}
        self.users: dict[str, list[Node]] = {}
        for node in graph.nodes.values():
            for tensor in dict.fromkeys(node.inputs):
                self.users.setdefault(tensor, []).append(node)

    def cuts(self) -> dict[str, str]:
        """Nodes in the order of the graph, each by what flows into it: a first, a second, or one between."""
        cuts: dict[str, str] = {}
        cut_dims: dict[str, int] = {}
        # whether one is a head follows from those behind it: looked for in this order, networks may be of any depth
        for node in reversed(self.graph.nodes.values()):
            self._firsts[node.name] = self._first(node)
        for node in self.graph.nodes.values():
            arriving = {t: cut_dims[t] for t in node.inputs if t in cut_dims}
            axis = self._carried(node, arriving) if arriving else self._firsts[node.name][0]
            if axis:
                cuts[node.name] = axis
                cut_dims.update(node.results_over(axis))
        return {**cuts, **dict(self._tables(cuts))} if cuts else {}

    def _tables(self, cuts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """The nodes that look up a table along whose rows its other users are cut, or that is larger than what is
        found there, and the axis of these rows."""
        for node in self.graph.nodes.values():
            for tensor, operand in zip(node.inputs, node.alignment.operands, strict=True):
                rows = [n for n, dim in enumerate(operand.dims) if operand.param and _is_numbered(node, dim)]
                if rows and self._is_free(node, operand.dims[rows[0]][0]) and self._pays(node, tensor, rows[0], cuts):
                    yield node.name, operand.dims[rows[0]][0]

    def _pays(self, node: Node, table: str, rows: int, cuts: Mapping[str, str]) -> bool:
        others = [user for user in self.users[table] if user.name != node.name]
        along = [user.alignment.operands[user.inputs.index(table)].dims[rows][0] for user in others]
        shapes = self.graph.tensors[table].shape, self.graph.tensors[node.outputs[0]].shape
        are_cut = [cuts.get(user.name) == axis for user, axis in zip(others, along, strict=True)]
        return all(are_cut) and (len(others) > 0 or prod(shapes[0]) > prod(shapes[1]))

    def _first(self, node: Node) -> tuple[str, bool]:
        """The axis of results that a node with a matrix is cut along, if it has a partner, else "", and whether that is
        a loss: the results are then large, and so no sums.
        """
        if not self._matrix(node):
            return "", False
        a = node.alignment
        of_params = {axis for o in a.operands if o.param for axis in o.axes}
        for axis in reversed(a.results[0].axes):
            if axis in of_params and self._is_free(node, axis) and (ends := self._ends(node, axis)):
                return axis, any(_looks_at_places(*end) for end in ends)
        return "", False

    def _matrix(self, node: Node) -> bool:
        """Whether a parameter has several axes and none that must stay whole, as windows have, or is looked up."""
        a = node.alignment
        several = (o for o in a.operands if o.param and len(o.dims) > 1 and not a.frozen.intersection(o.axes))
        return any(not any(_is_numbered(node, dim) for dim in o.dims) for o in several)

    def _ends(self, node: Node, axis: str) -> list[tuple[Node, str]]:
        """The seconds at which what flows from this cut ends, with their axes; none unless all of it does, through
        nodes that can be cut alike."""
        bearing = node.results_over(axis)
        if set(bearing) != set(node.outputs[:1]) and node.outputs[0] not in bearing:
            return []
        waiting, met = [(t, d) for t, d in bearing.items() if self.users.get(t)], []
        while waiting:
            tensor, dim = waiting.pop()
            for user in self.users.get(tensor, []):
                along = self._carried(user, {tensor: dim})
                if not along:
                    return []
                if self._contracts(user, along) or _looks_at_places(user, along):
                    met.append((user, along))
                else:
                    waiting += list(user.results_over(along).items())
        return met

    def _carried(self, node: Node, arriving: dict[str, int]) -> str:
        """The axis of a node along which what arrives is cut, if it is one and may be; else ""."""
        a = node.alignment
        axes = {o.dims[arriving[t]][0] for t, o in zip(node.inputs, a.operands, strict=True) if t in arriving}
        axis = axes.pop() if len(axes) == 1 else ""
        has_params = any(o.param and len(o.dims) > 1 for o in a.operands)
        is_second = axis and self._matrix(node) and self._contracts(node, axis) and not self._firsts[node.name][1]
        between = not has_params or is_second
        return axis if axis and between and self._is_free(node, axis) else ""

    def _contracts(self, node: Node, axis: str) -> bool:
        """Whether results are sums over the axis, which a parameter bears too."""
        a = node.alignment
        return not node.results_over(axis) and any(o.param and axis in o.axes for o in a.operands)

    def _is_free(self, node: Node, axis: str) -> bool:
        a = node.alignment
        if axis == SAMPLES or axis in a.frozen:
            return False
        extent = a.extents[axis]
        if extent < self.width:
            self.refused = max(self.refused, extent)
        else:
            self.taken = min(self.taken, extent)
        return extent >= self.width


def _is_numbered(node: Node, dim: tuple[str, ...]) -> bool:
    """Whether an operand of integers stands for places along a dim."""
    return any(axis in names.split() for _, names in node.op.numbering for axis in dim)


def _looks_at_places(node: Node, axis: str) -> bool:
    """Whether an axis cuts a dim along which integers stand for places."""
    dims = [dim for o in node.alignment.operands for dim in o.dims if dim]
    return any(dim[0] == axis and _is_numbered(node, dim) for dim in dims)

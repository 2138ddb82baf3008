"""Gradients: the operands that need one, and the gradient passes in reverse order.

Results that they read and that were not kept are recomputed before. It does not know strategies, processors or costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from castile.planner.graph import Node
from castile.planner.op import PASSES
from castile.planner.step.drafting import Draft, Place
from castile.planner.step.fetching import in_time
from castile.planner.step.handed import HandedOn
from castile.planner.step.program import COMPUTED_AGAIN, Micro


class Gradients:
    """The gradient passes of a program: which there are is found once, for all microbatches.

    arriving   the tensors that have a gradient
    onto       by (node, operand) the gradient to which the node's gradient of that operand is added
    """

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.arriving = {draft.graph.loss}
        self.onto: dict[tuple[str, int], Place] = {}
        self._handed = HandedOn(draft.graph.tensors)
        self._again: set[tuple[str, Micro | None]] = set()

    def plan(self, nodes: Sequence[Node]) -> dict[tuple[str, str], list[int]]:
        """By (node, pass) the operands whose gradients it computes.

        nodes   in the order of their gradients
        Raises ValueError in one sentence for an operator without the body of a pass that is needed.
        """
        graph = self.draft.graph
        learned = {t.name for t in graph.trained}
        for node in graph.nodes.values():
            if any(t in learned and node.op.has_gradient(i) for i, t in enumerate(node.inputs)):
                learned.update(node.outputs[: node.op.flows])
        wanted: dict[tuple[str, str], list[int]] = {}
        for node in nodes:
            results = set(node.outputs[: node.op.flows])
            if not results & self.arriving:
                continue
            for which, params in (("B", False), ("W", True)):
                found = [
                    i for i, t in enumerate(node.inputs)
                    if node.alignment.operands[i].param == params and t in learned and graph.tensors[t].floating
                    and node.op.has_gradient(i)
                ]  # fmt: skip
                if found and not node.op.has(which):
                    what = f"{node.name} ({node.op.name}): no gradient of its operand {found[0]}"
                    raise ValueError(f"{what} can be computed, and training needs it: write {PASSES[which]}")
                if found:
                    wanted[node.name, which] = found
                    self.arriving.update(node.inputs[i] for i in found)
        self.draft.zero.update(t for t in graph.tensors if t not in self.arriving)
        self._hand_on(wanted)
        return wanted

    def _hand_on(self, wanted: dict[tuple[str, str], list[int]]) -> None:
        """Leave out gradients that equal another one, or a piece of it.

        If it is the only contribution, its readers read the other gradient; else the next contribution adds to that.
        """
        draft, makers = self.draft, dict[str, list[tuple[str, int]]]()
        for (name, _), found in wanted.items():
            for i in found:
                makers.setdefault(draft.graph.nodes[name].inputs[i], []).append((name, i))
        for x, made in makers.items():
            for maker, after in zip(made, [*made[1:], None]):
                source = self._source(x, *maker)
                if source is None:
                    continue
                if len(made) == 1:
                    draft.same[x] = draft.place(*source)
                elif after is not None and self._adds(x, *after):
                    self.onto[after] = source
                else:
                    continue
                name, i = maker
                wanted[name, "B"].remove(i)
                if not wanted[name, "B"]:
                    del wanted[name, "B"]

    def _source(self, x: str, name: str, operand: int) -> Place | None:
        """The gradient, or its piece, that a node's gradient of its operand x equals, for all samples; None if none."""
        graph, dims, specs = self.draft.graph, self.draft.samples.dims, self.draft.specs
        node = graph.nodes[name]
        if graph.tensors[x].param or (name, operand) in self.onto:
            return None
        handed = self._handed.of(node).get(operand)
        if handed is None:
            return None
        y, cut = node.outputs[handed.result], dims.get(x)
        is_whole = cut == dims.get(y) and (cut is None or specs[x].shape[cut] == specs[y].shape[cut])
        return (y, handed.begin) if is_whole and specs[x].dtype == specs[y].dtype else None

    def _adds(self, x: str, name: str, operand: int) -> bool:
        """Whether the parts of a node compute disjoint pieces of x's gradient, so that each can add to another one."""
        node, samples = self.draft.graph.nodes[name], self.draft.samples
        together = (name in samples.axes) == (x in samples.dims)
        return together and node.op.apart(operand, node.alignment) is not None

    def add(self, nodes: Sequence[Node], wanted: dict[tuple[str, str], list[int]], micro: Micro | None) -> None:
        """Add the gradient passes of nodes, in reverse order."""
        draft = self.draft
        passes = [(node, which) for node in reversed(nodes) for which in ("B", "W") if (node.name, which) in wanted]
        dropped = [draft.dropped.read(node, which) for node, which in passes]
        fetched = in_time([draft.dropped.params(again) for again in dropped], draft.fetched_sizes)
        last = {node.inputs[i]: (node, which) for node, which in passes for i in wanted[node.name, which]}
        for (node, which), again, params in zip(passes, dropped, fetched, strict=True):
            draft.fetch(params, micro, again=True)
            self._recompute(again, micro)
            found = wanted[node.name, which]
            inputs = [*draft.ports("dy", node, micro), *draft.ports("x", node, micro, again)]
            if "y" in node.op.asks(which):
                inputs += draft.ports("y", node, micro, again)
            added = [(i, *self.onto[node.name, i]) for i in found if (node.name, i) in self.onto]
            inputs += [draft.port("onto", i, tensor, micro, piece) for i, tensor, piece in added]
            outputs = [draft.port("dx", i, node.inputs[i], micro) for i in found]
            draft.add(node, which, inputs, outputs, micro)
            draft.sum([t for t in dict.fromkeys(node.inputs) if last.get(t) == (node, which)], micro)

    def _recompute(self, tensors: Iterable[str], micro: Micro | None) -> None:
        """Add the passes that recompute these tensors, each once a microbatch."""
        draft = self.draft
        for node in draft.dropped.nodes(tensors):
            if (node.name, micro) not in self._again:
                self._again.add((node.name, micro))
                inputs = draft.ports("x", node, micro, draft.dropped.taken(node))
                results = draft.ports("y", node, micro, frozenset(node.outputs))
                draft.add(node, "F", inputs, results, micro, COMPUTED_AGAIN)

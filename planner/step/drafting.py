"""A program under construction: its steps, the regions that they touch, and where what they read lies.

It does not know in which order passes come, strategies, processors or costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import add

from castile.planner.bodies.vocabulary import Spec
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph, Node
from castile.planner.step.dropped import Dropped
from castile.planner.step.program import AGAIN, GRADIENT, WHOLE_BATCH, Home, Micro, Port, Step, of_micro
from castile.planner.step.samples import Samples

NONE: frozenset[str] = frozenset()
# A tensor, and where in its gradient a piece of that begins.
Place = tuple[str, tuple[int, ...]]


@dataclass
class Draft:
    """A program under construction; specs: what each region holds; renewals: the update of each parameter.

    dropped  what is not kept for gradient passes
    shown    of so many microbatches at most the passes are written out
    source   where parameters are read from that were fetched. slope: where the loss's gradient is, if it has a place
    same     tensors whose gradient is a piece of that of another, or all of it, and which: the two are one region
    """

    graph: Graph
    updates: Updates
    samples: Samples
    dropped: Dropped
    count: int = 1
    shown: int = 1
    steps: list[Step] = field(default_factory=list)
    specs: dict[str, Spec] = field(default_factory=dict)
    homes: dict[str, Home] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    slope: str = ""
    same: dict[str, Place] = field(default_factory=dict)
    renewals: dict[str, Node] = field(default_factory=dict)
    _ports: dict[tuple[str, str, Micro | None, frozenset[str]], tuple[Port, ...]] = field(default_factory=dict)

    def add(
        self, node: Node, which: str, inputs: Iterable[Port], outputs: Iterable[Port], micro: Micro | None = None,
        again: bool = False,
    ) -> None:  # fmt: skip
        axis, slot = self.samples.axes.get(node.name, "") if micro else "", len(self.steps)
        self.steps.append(Step(slot, node, which, tuple(inputs), tuple(outputs), axis, micro or WHOLE_BATCH, again))

    def place(self, tensor: str, begin: Sequence[int]) -> Place:
        """Where a piece of a tensor's gradient lies that begins there."""
        of, first = self.same.get(tensor, (tensor, (0,) * len(begin)))
        return of, tuple(map(add, first, begin))

    def ports(self, role: str, node: Node, micro: Micro | None, again: frozenset[str] = NONE) -> tuple[Port, ...]:
        """Those of a node's operands ("x"), results ("y") or the gradients of these ("dy").

        again   tensors that lie where they were computed again
        """
        key = role, node.name, micro, again
        if key not in self._ports:
            tensors = {"x": node.inputs, "y": node.outputs, "dy": node.outputs[: node.op.flows]}[role]
            rows = enumerate(tensors)
            self._ports[key] = tuple([self.port(role, n, t, micro, again=t in again) for n, t in rows])
        return self._ports[key]

    def port(
        self, role: str, index: int, tensor: str, micro: Micro | None, piece: tuple[int, ...] = (), again: bool = False
    ) -> Port:
        """The port of a tensor of the graph, or of its gradient; a parameter is read from where it was fetched to.

        piece   where in the gradient what it touches begins
        again   whether it lies where it was computed again
        """
        begin: tuple[int, ...] = ()
        if role in ("x", "y"):
            tensor = self.source.get(tensor, tensor)
            region = tensor + AGAIN if again else tensor
        else:
            if piece or tensor in self.same:
                tensor, begin = self.place(tensor, piece or (0,) * len(self.specs[tensor].shape))
            if role != "dx" and tensor == self.graph.loss and self.slope:
                return Port(role, index, self.slope)
            region = tensor + GRADIENT
        cut = self.samples.dims.get(tensor) if micro is not None else None
        if micro is not None and cut is not None:
            region = of_micro(region, micro)
        if region not in self.specs:
            self.specs[region] = self._spec(tensor, micro, cut)
        return Port(role, index, region, cut, begin if any(begin) else ())

    def _spec(self, tensor: str, micro: Micro | None, cut: int | None) -> Spec:
        """What holds a tensor or its gradient; along `cut` one microbatch of it."""
        spec = self.specs[tensor]
        if micro is None or cut is None:
            return spec
        return Spec((*spec.shape[:cut], spec.shape[cut] // micro.count, *spec.shape[cut + 1 :]), spec.dtype)

    def micros(self) -> list[Micro]:
        """Those that are written out; all but the first and the last are alike, so one of them can stand for more."""
        few = min(self.shown, self.count)
        return [Micro(k, self.count, 1 + (self.count - few) * (k == few - 2)) for k in range(few)]

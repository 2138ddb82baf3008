"""A program under construction: its steps, their ports, and the regions that these touch.

It does not know the order of passes, strategies, processors or costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from operator import add

from castile.planner.bodies.vocabulary import Spec
from castile.planner.families.updates import Updates
from castile.planner.graph import Graph, Node
from castile.planner.step.beside import apart
from castile.planner.step.dropped import Dropped
from castile.planner.step.program import (
    ACCUMULATED,
    ADDED_UP,
    AGAIN,
    COMPUTED_AGAIN,
    FETCHED_ANEW,
    GRADIENT,
    WHOLE_BATCH,
    Home,
    Micro,
    Port,
    Step,
    of_micro,
)
from castile.planner.step.samples import Samples

NONE: frozenset[str] = frozenset()
# A tensor, and where in its gradient a piece begins.
Place = tuple[str, tuple[int, ...]]


@dataclass
class Draft:
    """A program under construction.

    dropped    what is recomputed for gradient passes
    summed     the parameters with an accumulate node, which sums the gradients microbatch by microbatch
    shown      the most microbatches that are written out
    specs      shape and dtype of each region
    source     by fetched parameter the region that it is read from
    slope      the region of the loss's gradient, if it has one
    same       by tensor whose gradient is all or a piece of another tensor's gradient: that one. The two are one region
    zero       tensors whose gradient no pass makes: the host gives one for all microbatches
    renewals   the update of each parameter
    """

    graph: Graph
    updates: Updates
    samples: Samples
    dropped: Dropped
    summed: frozenset[str] = NONE
    count: int = 1
    shown: int = 1
    steps: list[Step] = field(default_factory=list)
    specs: dict[str, Spec] = field(default_factory=dict)
    homes: dict[str, Home] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    slope: str = ""
    same: dict[str, Place] = field(default_factory=dict)
    zero: set[str] = field(default_factory=set)
    renewals: dict[str, Node] = field(default_factory=dict)
    _ports: dict[tuple[str, str, Micro | None, frozenset[str]], tuple[Port, ...]] = field(default_factory=dict)
    _there: set[tuple[str, Micro | None, bool]] = field(default_factory=set)

    def add(
        self, node: Node, which: str, inputs: Iterable[Port], outputs: Iterable[Port], micro: Micro | None = None,
        form: str = "",
    ) -> None:  # fmt: skip
        axis, slot = self.samples.axes.get(node.name, "") if micro else "", len(self.steps)
        ports = tuple(inputs), tuple(outputs)
        self.steps.append(Step(slot, node, which, *ports, form or which, axis, micro or WHOLE_BATCH))

    def fetch(self, params: Iterable[str], micro: Micro | None, again: bool = False) -> None:
        """Add the fetches of parameters that are not kept, once a microbatch and once again for its gradients."""
        for param in params:
            if (param, micro, again) not in self._there:
                self._there.add((param, micro, again))
                node, form = self.dropped.fetched[param], COMPUTED_AGAIN if again else FETCHED_ANEW
                ports = [Port("x", 0, param)], [self.port("y", 0, param, micro, again=again)]
                self.add(node, "F", *ports, micro, form)

    @cached_property
    def fetched_sizes(self) -> dict[str, int]:
        """The number of elements of each parameter that is not kept."""
        return {name: prod(self.specs[name].shape) for name in self.dropped.fetched}

    def sum(self, params: Iterable[str], micro: Micro | None) -> None:
        """Add the accumulators of these parameters, where they have any, for a microbatch's gradients."""
        for param in params:
            if param in self.summed:
                region = param + ACCUMULATED
                self.specs[region] = self.specs[param]
                gradient = self.port("dx", 0, param, micro)
                node = apart("accumulate", self.graph.tensors[param])
                self.add(node, "F", [Port("x", 0, gradient.region)], [Port("y", 0, region)], micro, ADDED_UP)

    def place(self, tensor: str, begin: Sequence[int]) -> Place:
        """The tensor whose gradient region holds a piece of this tensor's gradient, and where that begins in it."""
        of, first = self.same.get(tensor, (tensor, (0,) * len(begin)))
        return of, tuple(map(add, first, begin))

    def ports(self, role: str, node: Node, micro: Micro | None, again: frozenset[str] = NONE) -> tuple[Port, ...]:
        """The ports of a node's operands ("x"), results ("y") or the gradients of results ("dy").

        again   tensors that are read from where they were recomputed
        """
        key = role, node.name, micro, again
        if key not in self._ports:
            tensors = node.inputs if role == "x" else node.outputs[: node.op.flows if role == "dy" else None]
            rows = enumerate(tensors)
            self._ports[key] = tuple([self.port(role, n, t, micro, again=t in again) for n, t in rows])
        return self._ports[key]

    def port(
        self, role: str, index: int, tensor: str, micro: Micro | None, piece: tuple[int, ...] = (), again: bool = False
    ) -> Port:
        """The port of a tensor of the graph, or of its gradient; a fetched parameter is read from its fetch.

        piece   where in the gradient the port begins
        again   whether it is read from where it was recomputed
        """
        is_one = False
        begin: tuple[int, ...] = ()
        is_own = tensor in (self.dropped.fetched if role in ("x", "y") else self.summed)
        if role in ("x", "y"):
            tensor = self.source.get(tensor, tensor)
            region = tensor + AGAIN if again else tensor
        else:
            if piece or tensor in self.same:
                tensor, begin = self.place(tensor, piece or (0,) * len(self.specs[tensor].shape))
            if role != "dx" and tensor == self.graph.loss and self.slope:
                return Port(role, index, self.slope)
            region = tensor + GRADIENT
            is_one = tensor in self.zero
        cut = self.samples.dims.get(tensor) if micro is not None else None
        if micro is not None and (cut is not None or is_own) and not is_one:
            region = of_micro(region, micro)
        if region not in self.specs:
            self.specs[region] = self._spec(tensor, micro, cut)
        return Port(role, index, region, cut, begin if any(begin) else ())

    def _spec(self, tensor: str, micro: Micro | None, cut: int | None) -> Spec:
        """The shape and dtype of a region that holds a tensor or its gradient, along `cut` one microbatch of it."""
        spec = self.specs[tensor]
        if micro is None or cut is None:
            return spec
        return Spec((*spec.shape[:cut], spec.shape[cut] // micro.count, *spec.shape[cut + 1 :]), spec.dtype)

    def micros(self) -> list[Micro]:
        """The microbatches that are written out; all but the first and the last are alike, so one stands for more."""
        few = min(self.shown, self.count)
        return [Micro(k, self.count, 1 + (self.count - few) * (k == few - 2)) for k in range(few)]

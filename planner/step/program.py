"""Programs: the passes of one training step (or of a forward pass) in order, and the versions of regions between them.

Data only; `passes` makes them. It does not know strategies, processors or costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import msgspec

from castile.planner.axes import Operand
from castile.planner.graph import Graph, Node
from castile.runtime.region import Box

GRADIENT, FETCHED, ACCUMULATED, CLIPPED, AGAIN = "/grad", "/fetched", "/accumulated", "/clipped", "/again"
# What forward passes are called that were done before, fetches for one microbatch, and sums of its gradients.
COMPUTED_AGAIN, FETCHED_ANEW, ADDED_UP = "again", "anew", "sum"


class Micro(msgspec.Struct, frozen=True):
    """One of `count` microbatches: an equal piece of the sample axis in time.

    times   it stands for so many alike, of which the others are not written out
    """

    number: int = 0
    count: int = 1
    times: int = 1


WHOLE_BATCH = Micro()


class Port(msgspec.Struct, frozen=True):
    """What a pass touches: operand ("x"), result ("y"), or the gradient of either ("dy", "dx"), by number.

    What an operand's gradient is added to ("onto") lies as that gradient does.
    cut     the dim along which the region holds one microbatch only; its boxes are counted from there
    begin   where in the region what it touches begins, () where they are one
    """

    role: str
    index: int
    region: str
    cut: int | None = None
    begin: tuple[int, ...] = ()

    @property
    def of_operand(self) -> bool:
        """Whether it lies as an operand does; else as a result."""
        return self.role in ("x", "dx", "onto")


class Step(msgspec.Struct, frozen=True):
    """One pass of one node, over `axis` (its sample axis) for one microbatch; its place in the program is its slot.

    form   the pass, or what it is called besides
    """

    slot: int
    node: Node
    which: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    form: str
    axis: str = ""
    micro: Micro = WHOLE_BATCH

    @property
    def again(self) -> bool:
        """Whether it is a forward pass that was done before, whose results were not kept."""
        return self.form == COMPUTED_AGAIN

    @property
    def is_late(self) -> bool:
        """Whether it waits until its processor is done with the passes before it, as what it makes is kept from then
        on."""
        return self.form in (COMPUTED_AGAIN, FETCHED_ANEW)

    @property
    def name(self) -> str:
        number = f"@{self.micro.number}" if self.micro.count > 1 else ""
        return f"{self.node.name}.{self.form}{number}"


class Home(msgspec.Struct, frozen=True):
    """Where a carried region lies between steps: in the layout of that result of its update."""

    node: Node
    result: int


class Flow(msgspec.Struct, frozen=True):
    """One version of a region: who produces it, who reads it, by (slot, port number), in program order.

    role          "" (made and used within the step), "input" (the host fills what readers want), "output" (the host
                  reads it whole on processor 0), or "carried" (there before the step, at `home`)
    shape         as it lies in memory
    overwriters   ports that write a carried region anew, in place
    """

    region: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    producers: tuple[tuple[int, int], ...]
    readers: tuple[tuple[int, int], ...]
    home: Home | None = None
    overwriters: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Program:
    """Steps by slot, and the flows between them."""

    graph: Graph
    steps: tuple[Step, ...]
    flows: tuple[Flow, ...]

    @cached_property
    def params(self) -> frozenset[str]:
        """The names of the graph's parameters."""
        return frozenset(p.name for p in self.graph.params)

    @cached_property
    def again(self) -> frozenset[str]:
        """The names of the graph's nodes that are computed again for gradients."""
        return frozenset(step.node.name for step in self.steps if step.again) & self.graph.nodes.keys()

    @cached_property
    def dtypes(self) -> dict[str, str]:
        """What the elements of each region are."""
        return {f.region: f.dtype for f in self.flows}

    @cached_property
    def slots(self) -> tuple[tuple[int, ...], ...]:
        """For each flow the steps that it touches."""
        return tuple([touched(flow) for flow in self.flows])

    @cached_property
    def micro_of_step(self) -> tuple[int, ...]:
        """For each step its microbatch, -1 where it is of the whole batch."""
        return tuple([step.micro.number if step.micro.count > 1 else -1 for step in self.steps])

    @cached_property
    def micro_of_flow(self) -> tuple[int, ...]:
        """For each flow the microbatch of all steps that it touches, -1 where that is none or there are several."""
        return tuple([_only(map(self.micro_of_step.__getitem__, slots)) for slots in self.slots])

    @cached_property
    def one_micro_of_flow(self) -> tuple[int, ...]:
        """The same where a flow is between one and the whole batch: that one."""
        return tuple([one_micro(map(self.steps.__getitem__, slots)) for slots in self.slots])

    @cached_property
    def users(self) -> tuple[tuple[str, ...], ...]:
        """For each flow the nodes whose Configs decide its layouts."""
        names = [step.node.name for step in self.steps]
        homes = [[flow.home.node.name] if flow.home else [] for flow in self.flows]
        rows = [[*map(names.__getitem__, slots), *home] for slots, home in zip(self.slots, homes)]
        return tuple([tuple(dict.fromkeys(row)) for row in rows])


def one_micro(steps: Iterable[Step]) -> int:
    """The microbatch of these steps, beside those of the whole batch; -1 where that is none or there are several."""
    return _only(step.micro.number for step in steps if step.micro.count > 1)


def _only(numbers: Iterable[int]) -> int:
    """The one that all are, -1 where they are several or none."""
    found = {*numbers}
    return found.pop() if len(found) == 1 else -1


def bearing(step: Step) -> list[Operand]:
    """What each port of a step is to its node: an operand or a result, or the gradient of one."""
    a, ports = step.node.alignment, (*step.inputs, *step.outputs)
    return [(a.operands if port.of_operand else a.results)[port.index] for port in ports]


def touched(flow: Flow) -> tuple[int, ...]:
    """The slots of the steps that a flow touches, each once: as they make it, read it and write it anew."""
    return tuple(dict.fromkeys(map(itemgetter(0), (*flow.producers, *flow.readers, *flow.overwriters))))


def update_name(param: str) -> str:
    return f"{param}/update"


def fetch_name(param: str) -> str:
    return f"{param}/fetch"


def accumulate_name(param: str) -> str:
    return f"{param}/accumulate"


def of_micro(region: str, micro: Micro) -> str:
    """The region that holds one microbatch of another."""
    return f"{region}@{micro.number}:{micro.count}" if micro.count > 1 else region


def in_whole(graph: Graph, region: str, box: Box) -> tuple[str, Box]:
    """What a region of the program holds, an input wholly or one microbatch of it, and which box of the whole."""
    name, at, micro = region.rpartition("@")
    if not at or name not in graph.inputs:
        return name or region, box
    number, count = map(int, micro.split(":"))
    first = number * graph.tensors[name].shape[0] // count
    return name, box.along(0, box.lo[0] + first, box.hi[0] + first)

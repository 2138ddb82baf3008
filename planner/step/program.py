"""Programs: the passes of a training step or a forward pass in order, and the versions of regions between them.

Data only; `passes` builds them. It does not know strategies, processors or costs.
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
# The forms of recomputed forward passes, of fetches for one microbatch, and of sums of its gradients.
COMPUTED_AGAIN, FETCHED_ANEW, ADDED_UP = "again", "anew", "sum"


class Micro(msgspec.Struct, frozen=True):
    """One of `count` microbatches: equal pieces of the sample axis, one after the other.

    times   how many microbatches it stands for: the others are not written out
    """

    number: int = 0
    count: int = 1
    times: int = 1


WHOLE_BATCH = Micro()


class Port(msgspec.Struct, frozen=True):
    """What a pass touches, by number: an operand ("x"), a result ("y"), the gradient of either ("dx", "dy"), or what an
    operand's gradient is added to ("onto"), which has the layout of that gradient.

    cut     the dim along which the region holds one microbatch only, from which its boxes are counted
    begin   where in the region the port begins, () where it is the whole region
    """

    role: str
    index: int
    region: str
    cut: int | None = None
    begin: tuple[int, ...] = ()

    @property
    def of_operand(self) -> bool:
        """Whether it has the layout of an operand, not of a result."""
        return self.role in ("x", "dx", "onto")


class Step(msgspec.Struct, frozen=True):
    """One pass of one node for one microbatch; `slot` is its number in the program.

    which   the pass: "F", "B" or "W"
    form    the pass, or a name of its own, such as COMPUTED_AGAIN
    axis    the node's sample axis
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
        """Whether it recomputes results of a forward pass that were not kept."""
        return self.form == COMPUTED_AGAIN

    @property
    def is_late(self) -> bool:
        """Whether it waits until its processor has done the passes before it, so that its results do not take memory
        too early.
        """
        return self.form in (COMPUTED_AGAIN, FETCHED_ANEW)

    @property
    def name(self) -> str:
        number = f"@{self.micro.number}" if self.micro.count > 1 else ""
        return f"{self.node.name}.{self.form}{number}"


class Home(msgspec.Struct, frozen=True):
    """The layout of a carried region between steps: that of a result of its update."""

    node: Node
    result: int


class Flow(msgspec.Struct, frozen=True):
    """One version of a region: who produces it, who reads it, by (slot, port number), in program order.

    role          "" (made and used within the step), "input" (the host fills what readers read), "output" (the host
                  reads all of it on processor 0), or "carried" (there before the step, at `home`)
    shape         in memory order
    overwriters   ports that overwrite a carried region in place
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
        """The names of the graph's nodes that are recomputed for gradients."""
        return frozenset(step.node.name for step in self.steps if step.again) & self.graph.nodes.keys()

    @cached_property
    def dtypes(self) -> dict[str, str]:
        """The dtype of each region."""
        return {f.region: f.dtype for f in self.flows}

    @cached_property
    def slots(self) -> tuple[tuple[int, ...], ...]:
        """By flow the slots of the steps that it touches."""
        return tuple([touched(flow) for flow in self.flows])

    @cached_property
    def micro_of_step(self) -> tuple[int, ...]:
        """By step its microbatch, -1 for steps of the whole batch."""
        return tuple([step.micro.number if step.micro.count > 1 else -1 for step in self.steps])

    @cached_property
    def micro_of_flow(self) -> tuple[int, ...]:
        """By flow the microbatch of all steps that it touches, -1 for none or several."""
        return tuple([_only(map(self.micro_of_step.__getitem__, slots)) for slots in self.slots])

    @cached_property
    def one_micro_of_flow(self) -> tuple[int, ...]:
        """The same, but for a flow between one microbatch and the whole batch: that microbatch."""
        return tuple([one_micro(map(self.steps.__getitem__, slots)) for slots in self.slots])

    @cached_property
    def users(self) -> tuple[tuple[str, ...], ...]:
        """By flow the nodes whose Configs decide its layouts."""
        names = [step.node.name for step in self.steps]
        homes = [[flow.home.node.name] if flow.home else [] for flow in self.flows]
        rows = [[*map(names.__getitem__, slots), *home] for slots, home in zip(self.slots, homes)]
        return tuple([tuple(dict.fromkeys(row)) for row in rows])


def one_micro(steps: Iterable[Step]) -> int:
    """The microbatch of these steps, apart from those of the whole batch; -1 for none or several."""
    return _only(step.micro.number for step in steps if step.micro.count > 1)


def _only(numbers: Iterable[int]) -> int:
    """The number that all are, -1 for none or several."""
    found = {*numbers}
    return found.pop() if len(found) == 1 else -1


def bearing(step: Step) -> list[Operand]:
    """The operand or result, or that of the gradient, of each port of a step."""
    a, ports = step.node.alignment, (*step.inputs, *step.outputs)
    return [(a.operands if port.of_operand else a.results)[port.index] for port in ports]


def touched(flow: Flow) -> tuple[int, ...]:
    """The slots of the steps that a flow touches, each once: producers, readers and overwriters."""
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
    """The input that a region of the program holds, all of it or one microbatch, and the box in all of it."""
    name, at, micro = region.rpartition("@")
    if not at or name not in graph.inputs:
        return name or region, box
    number, count = map(int, micro.split(":"))
    first = number * graph.tensors[name].shape[0] // count
    return name, box.along(0, box.lo[0] + first, box.hi[0] + first)

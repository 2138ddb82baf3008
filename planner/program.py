"""Programs: the passes of one training step (or of a forward pass) in order, and the versions of regions between them.

Data only; `passes` makes them. It does not know strategies, processors or costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from castile.planner.graph import Graph, Node
from castile.runtime.region import Box

GRADIENT, FETCHED, ACCUMULATED, CLIPPED = "/grad", "/fetched", "/accumulated", "/clipped"


@dataclass(frozen=True)
class Micro:
    """One of `count` microbatches: an equal piece of the sample axis in time.

    times   it stands for so many alike, of which the others are not written out
    """

    number: int = 0
    count: int = 1
    times: int = 1


WHOLE_BATCH = Micro()


@dataclass(frozen=True)
class Port:
    """What a pass touches: operand ("x"), result ("y"), or the gradient of either ("dy", "dx"), by number.

    cut   the dim along which the region holds one microbatch only; its boxes are counted from there
    """

    role: str
    index: int
    region: str
    cut: int | None = None


@dataclass(frozen=True)
class Step:
    """One pass of one node, over `axis` (its sample axis) for one microbatch; its place in the program is its slot."""

    slot: int
    node: Node
    which: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    axis: str = ""
    micro: Micro = WHOLE_BATCH

    @property
    def name(self) -> str:
        number = f"@{self.micro.number}" if self.micro.count > 1 else ""
        return f"{self.node.name}.{self.which}{number}"


@dataclass(frozen=True)
class Home:
    """Where a carried region lies between steps: in the layout of that result of its update."""

    node: Node
    result: int


@dataclass(frozen=True)
class Flow:
    """One version of a region: who produces it, who reads it, by (slot, port number), in program order.

    role          "" (made and used within the step), "input" (the host fills what readers want), "output" (the host
                  reads it whole on processor 0), or "carried" (there before the step, at `home`)
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
    def dtypes(self) -> dict[str, str]:
        """What the elements of each region are."""
        return {f.region: f.dtype for f in self.flows}

    @cached_property
    def users(self) -> tuple[tuple[str, ...], ...]:
        """For each flow the nodes whose Configs decide its layouts."""

        def of(flow: Flow) -> dict[str, None]:
            slots = dict.fromkeys(slot for slot, _ in (*flow.producers, *flow.readers, *flow.overwriters))
            home = {flow.home.node.name: None} if flow.home else {}
            return {self.steps[slot].node.name: None for slot in slots} | home

        return tuple(tuple(of(f)) for f in self.flows)


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
    return name, Box((box.lo[0] + first, *box.lo[1:]), (box.hi[0] + first, *box.hi[1:]))

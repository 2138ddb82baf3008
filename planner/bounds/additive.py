"""The additive cost model: a price for each node's Config and for each pair of Configs that share a tensor.

The sum of Jia, Lin, Qi, Aiken, "Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks" (ICML
2018), with prices from the templates of lowering and the cost model. It knows neither overlap nor memory, nor who
minimises it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from castile.planner.cost import CostModel
from castile.planner.lower import Lowering
from castile.planner.lowering.instances import StepInstance
from castile.planner.lowering.versions import Placed
from castile.planner.step.program import Flow, Program, Step
from castile.planner.strategy import Config
from castile.runtime import transfer
from castile.runtime.dependence import Version
from castile.runtime.task import NUM_LANES, CostKey, Kind

# Packing, moving and folding of one transfer follow each other.
PHASES = {Kind.PACK: 0, Kind.MOVE: 1, Kind.COLLECTIVE: 1, Kind.FOLD: 2}

Slots = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Edge:
    """Two nodes of the graph in its order, and the flows between them, as if no other node touched these.

    alone   for each flow the part of it that the cost of one of the two nodes includes already, None for nothing
    key     equal for edges of equal cost, whatever their nodes are called
    """

    nodes: tuple[str, str]
    flows: tuple[Flow, ...]
    alone: tuple[Flow | None, ...]
    key: Hashable


class Additive:
    """Prices, in picoseconds, of one graph's Configs on one machine. The price of a plan (`price`) is

        sum over nodes of work(c) + sync(c)   +   sum over edges of move(c, c')

    work(c)       of each pass that the node decides the busiest processor's time, added up; updates of its parameters
                  are among these
    sync(c)       transfers that its own Config decides, as the sum of its gradients over replicas
    move(c, c')   transfers between two nodes, without what is in the `sync` of either already

    Of a tensor with several readers each is priced as if it were alone with the producer: where no tensor has more than
    two users, each transfer is priced once. A microbatch that stands for others (`Micro`) is priced as often. Nodes
    that cost alike are priced once: layers of one shape, and the steps of a recurrent one. What else a Config decides
    (the default update of a parameter) is the deciding node's.
    """

    def __init__(self, lowering: Lowering, cost: CostModel) -> None:
        self.lowering, self.cost = lowering, cost
        plan = lowering.plan({})
        # Parameters that are fetched anew lie as their updates do, in pieces: such updates are not priced here.
        again = tuple([name for name in plan.recompute if name in lowering.names.nodes])
        self.program: Program = lowering.program(msgspec.structs.replace(plan, recompute=again))
        self._numbers: dict[Hashable, int] = {}
        self._decided: dict[tuple[str, Config], dict[str, Config]] = {}
        self._instances: dict[tuple[int, Config], StepInstance] = {}
        self._spent: dict[tuple[int, bytes], int] = {}
        self._prices: dict[Hashable, int] = {}

    @property
    def deciders(self) -> dict[str, str]:
        """For each node of the program the node of the graph whose Config decides its own."""
        return self.lowering.deciders

    @cached_property
    def steps(self) -> dict[str, list[Step]]:
        """By node of the graph: the passes that its Config decides, in the order of the program."""
        found: dict[str, list[Step]] = {name: [] for name in self.lowering.piece.nodes}
        for step in self.program.steps:
            if step.node.name in self.deciders:
                found[self.deciders[step.node.name]].append(step)
        return found

    @cached_property
    def step_kinds(self) -> list[int]:
        """By slot a number, equal for passes that have the same template under every split."""
        return self.lowering.kinds(self.program).step

    @cached_property
    def kinds(self) -> dict[str, int]:
        """By node a number, equal for nodes with equal passes."""
        # Passes with the same templates cost the same; some with other templates do so too.
        like = [(kind, step.micro.number) for kind, step in zip(self.step_kinds, self.program.steps, strict=True)]
        alike = {key: self._priced_as(step) for key, step in dict(zip(like, self.program.steps)).items()}
        cost = [alike[key] for key in like]
        return {name: self._number("node", *[cost[s.slot] for s in steps]) for name, steps in self.steps.items()}

    @cached_property
    def own(self) -> dict[str, tuple[Flow, ...]]:
        """By node the flows that its own Config decides alone, and its share of those that it decides with others."""
        found: dict[str, list[Flow]] = {name: [] for name in self.steps}
        for anchor, _, flow in self._shares:
            if (alone := self._only(flow, {anchor})) is not None:
                found[anchor].append(alone)
        return {name: tuple(flows) for name, flows in found.items()}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """The pairs of nodes between which something may have to move, each pair once."""
        found: dict[tuple[str, str], list[tuple[Flow, Flow | None]]] = {}
        place = {name: number for number, name in enumerate(self.steps)}
        for anchor, others, flow in self._shares:
            for other in others:
                if (between := self._only(flow, {anchor, other})) is not None:
                    a, b = sorted((anchor, other), key=place.__getitem__)
                    found.setdefault((a, b), []).append((between, self._only(flow, {anchor})))
        return tuple(self._edge(nodes, rows) for nodes, rows in found.items())

    def _edge(self, nodes: tuple[str, str], rows: Sequence[tuple[Flow, Flow | None]]) -> Edge:
        flows, alone = (tuple(column) for column in zip(*rows, strict=True))
        return Edge(nodes, flows, alone, self._key(nodes, (*flows, *(f for f in alone if f is not None))))

    def work(self, name: str, config: Config) -> int:
        """Picoseconds of a node's passes: the sum of each one's busiest processor."""
        key = ("work", self.kinds[name], config)
        if key not in self._prices:
            configs = self.decided(name, config)
            lasts = ((step.micro.times, self._longest(step, configs[step.node.name])) for step in self.steps[name])
            self._prices[key] = sum(times * longest for times, longest in lasts)
        return self._prices[key]

    def sync(self, name: str, config: Config) -> int:
        """Picoseconds of the transfers that a node's own Config decides, such as the sum of its gradients."""
        key = ("sync", self.own_key(name), config)
        if key not in self._prices:
            configs = self.decided(name, config)
            self._prices[key] = self._moved(self.own[name], configs)
        return self._prices[key]

    def move(self, edge: Edge, first: Config, second: Config) -> int:
        """Picoseconds of the transfers between two nodes, less what `sync` of either has of them already."""
        key = ("move", edge.key, first, second)
        if key not in self._prices:
            configs = self.decided(edge.nodes[0], first) | self.decided(edge.nodes[1], second)
            priced = self._moved([flow for flow in edge.alone if flow is not None], configs)
            self._prices[key] = self._moved(edge.flows, configs) - priced
        return self._prices[key]

    def price(self, configs: Mapping[str, Config]) -> int:
        """The price of a plan in picoseconds: of its nodes and of all pairs."""
        nodes = sum(self.work(name, configs[name]) + self.sync(name, configs[name]) for name in self.steps)
        return nodes + sum(self.move(edge, *(configs[name] for name in edge.nodes)) for edge in self.edges)

    def _moved(self, flows: Iterable[Flow], configs: Mapping[str, Config]) -> int:
        return sum(self.times(flow) * self.moves(flow, configs) for flow in flows)

    def times(self, flow: Flow) -> int:
        """How many flows this one represents: as many as the microbatch in which it begins, if that is one, or ends."""
        micros = {self.program.steps[slot].micro for slot, _ in flow.producers or flow.readers}
        return next(iter(micros)).times if len(micros) == 1 else 1

    @cached_property
    def _shares(self) -> list[tuple[str, tuple[str, ...], Flow]]:
        """For each flow with one node at one of its ends: that node (the anchor), the other nodes that touch it, and
        the flow.
        """
        found = []
        for flow in self.program.flows:
            # what no single node decides, as where the loss's scale lies, is little
            if flow.role == "input" or (flow.home is not None and flow.home.node.name not in self.deciders):
                continue
            made, read = self._ends(flow.producers), self._ends((*flow.readers, *flow.overwriters))
            if flow.home is not None:
                made = {self.deciders[flow.home.node.name]: None}
            single = read if len(read) == 1 and len(made) != 1 else made
            if single:
                anchor = next(iter(single))
                found.append((anchor, tuple(name for name in {**made, **read} if name != anchor), flow))
        return found

    def _ends(self, slots: Slots) -> dict[str, None]:
        names = (self.program.steps[slot].node.name for slot, _ in slots)
        return {self.deciders[name]: None for name in names if name in self.deciders}

    def _only(self, flow: Flow, nodes: set[str]) -> Flow | None:
        """A flow as if only these nodes touched it; None where nothing could move."""

        def kept(slots: Slots) -> Slots:
            return tuple(s for s in slots if self.deciders.get(self.program.steps[s[0]].node.name) in nodes)

        made, read = kept(flow.producers), kept(flow.readers)
        if not (made or flow.home) or not (read or flow.role == "output"):
            return None
        return msgspec.structs.replace(flow, producers=made, readers=read, overwriters=kept(flow.overwriters))

    def side(self, edge: Edge, slot: int) -> int:
        """Which of an edge's two nodes, 0 or 1, decides the pass in this slot of the program."""
        return edge.nodes.index(self.deciders[self.program.steps[slot].node.name])

    def home_side(self, edge: Edge, flow: Flow) -> int:
        """Which of an edge's two nodes, 0 or 1, decides where a carried region lies; -1 where neither does."""
        name = self.deciders.get(flow.home.node.name) if flow.home is not None else None
        return edge.nodes.index(name) if name in edge.nodes else -1

    def made(self, flow: Flow, configs: Mapping[str, Config]) -> list[Placed]:
        """The layouts of a flow's producers, or of what is carried."""
        if flow.home is None:
            return [self.placed(slot, port, True, configs) for slot, port in flow.producers]
        return [self.lowering.at_home(flow.home, configs)]

    def read(self, flow: Flow, configs: Mapping[str, Config]) -> list[Placed]:
        """The layouts of a flow's readers; the host reads the whole on processor 0."""
        found = [self.placed(slot, port, False, configs) for slot, port in flow.readers]
        return found + [self.lowering.versions.on_host(flow.shape)] * (flow.role == "output")

    def moves(self, flow: Flow, configs: Mapping[str, Config]) -> int:
        """Picoseconds of a flow's transfers between nodes with these Configs."""
        version, procs = self.version(flow, self.made(flow, configs), self.read(flow, configs))
        key = id(version), self.lowering.machine.kind_of[list(procs)].tobytes()
        if key not in self._spent:
            self._spent[key] = self._seconds(version, procs)
        return self._spent[key]

    def version(self, flow: Flow, made: Sequence[Placed], read: Sequence[Placed]) -> tuple[Version, tuple[int, ...]]:
        """(the analysis of a flow between these layouts, the processor of each of its slots), as `Versions.get` gives
        it.
        """
        return self.lowering.versions.get(flow, made, read)

    def _seconds(self, version: Version, procs: Sequence[int]) -> int:
        """Picoseconds of a version's transfers: packing, moving and summing one after the other, for each the busiest
        engine's.
        """
        patterns = version.patterns
        firsts = [int(transfer.lanes(p.kind, [procs[slot] for slot in p.procs])[0]) // NUM_LANES for p in patterns]
        lasts = self.prices([p.key for p in patterns], firsts).tolist()
        busy: list[dict[tuple[int, int], int]] = [{}, {}, {}]
        for pattern, seconds in zip(patterns, lasts, strict=True):
            engines = self.lowering.machine.engines
            lanes = (divmod(int(lane), NUM_LANES) for lane in transfer.lanes(pattern.kind, pattern.procs))
            for place in {(slot, engines[lane]) for slot, lane in lanes}:
                phase = busy[PHASES[pattern.kind]]
                phase[place] = phase.get(place, 0) + seconds
        return sum(max(phase.values(), default=0) for phase in busy)

    def lasts(self, slot: int, config: Config) -> np.ndarray:
        """int64[procs of the Config]: picoseconds of each part and replica of one pass."""
        keys, of_part = self.instance(slot, config).template.does.keys
        return self.prices(keys, config.procs, np.repeat(of_part, config.replicas))

    def prices(self, keys: Sequence[CostKey], procs: Sequence[int], which: np.ndarray | None = None) -> np.ndarray:
        """int64[tasks]: picoseconds of tasks with these keys (or of each number of one), on these processors."""
        kinds = range(len(self.lowering.machine.kinds))
        table = np.stack([self.cost.picoseconds(keys, kind) for kind in kinds])
        which = np.arange(len(keys)) if which is None else which
        return table[self.lowering.machine.kind_of[list(procs)], which]

    def _longest(self, step: Step, config: Config) -> int:
        """Picoseconds of the busiest processor in one pass."""
        return int(np.bincount(config.procs, self.lasts(step.slot, config)).max())

    def instance(self, slot: int, config: Config) -> StepInstance:
        """A pass under a Config of its node."""
        key = (slot, config)
        if key not in self._instances:
            step = self.program.steps[slot]
            template = self.lowering.templates.get(step, config.split, self.program.dtypes.__getitem__)
            self._instances[key] = StepInstance(step, template, config)
        return self._instances[key]

    def placed(self, slot: int, port: int, output: bool, configs: Mapping[str, Config]) -> Placed:
        """The boxes of one port of a pass, and where they lie."""
        return self.lowering.placed(self.instance(slot, configs[self.program.steps[slot].node.name]), port, output)

    def decided(self, name: str, config: Config) -> dict[str, Config]:
        """The Configs of a node and of all that it decides."""
        key = (name, config)
        if key not in self._decided:
            others = dict.fromkeys(self.steps, Config())
            found = self.lowering.configs(self.lowering.plan({**others, name: config}))
            self._decided[key] = {n: found[n] for n, decider in self.deciders.items() if decider == name}
        return self._decided[key]

    def _priced_as(self, step: Step) -> int:
        dtypes = self.program.dtypes
        ports = tuple([(p.role, p.index, p.cut, p.begin, dtypes[p.region]) for p in (*step.inputs, *step.outputs)])
        node = self.lowering.templates.cost_kind(step.node)
        return self._number("step", node, step.which, step.axis, step.micro, ports)

    def own_key(self, name: str) -> int:
        """Equal for nodes whose `sync` is the same."""
        return self._number("own", self._key((name,), self.own[name]))

    def _key(self, nodes: Sequence[str], flows: Sequence[Flow]) -> Hashable:
        """What the costs of flows between these nodes depend on, beside the nodes' Configs."""
        places = {step.slot: (n, k) for n, name in enumerate(nodes) for k, step in enumerate(self.steps[name])}

        def of(slots: Slots) -> tuple:
            return tuple((places[slot], port) for slot, port in slots)

        rows = tuple(
            (f.shape, f.dtype, f.role, f.home and f.home.result, of(f.producers), of(f.readers), of(f.overwriters))
            for f in flows
        )
        return self._number("flows", tuple(self.kinds[name] for name in nodes), rows)

    def _number(self, *what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))

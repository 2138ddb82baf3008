"""Lowering: the only place where a plan becomes tasks, so that what is simulated is what is executed.

A step template is made once for each (operator, local shapes, split), a flow template once for the layouts of a region
version. Instances of templates are cached by the Configs that decide them, so a changed Config rebuilds only its own
steps and the versions that these touch. It does not know time: the order of tasks is the simulator's.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import count, repeat
from math import inf

import msgspec

from castile.planner.families.updates import Updates
from castile.planner.graph import Graph, Node
from castile.planner.lowering.buckets import Composed
from castile.planner.lowering.catalogue import Catalogue
from castile.planner.lowering.compose import compose
from castile.planner.lowering.contraction import Contracted
from castile.planner.lowering.grid import Layout
from castile.planner.lowering.instances import FlowInstance, FlowTemplate, FlowTemplates, StepInstance
from castile.planner.lowering.kinds import Kinds
from castile.planner.lowering.template import StepTemplate, Templates, cuts_of
from castile.planner.lowering.transfer_order import in_transfer_order
from castile.planner.lowering.versions import Placed, Versions
from castile.planner.op import find
from castile.planner.step import beside, passes, samples
from castile.planner.step.program import Flow, Home, Port, Program, Step, accumulate_name, fetch_name, update_name
from castile.planner.strategy import READY, Config, Strategy, check
from castile.runtime.dependence import Version
from castile.runtime.garbage import uncollected
from castile.runtime.machine import Machine
from castile.runtime.region import Box
from castile.runtime.task import TaskGraph
from castile.runtime.transfer import TooManyTransfers

# The most cached instances: the caches are cleared beyond that.
KEPT = 200_000


class Lowering:
    """Lowers many strategies of one graph on one machine, sharing templates among them.

    mode           "train": a whole step with updates;  "forward": to the graph's outputs, over the same parameters
    microbatches   the number of microbatches of plans made for this lowering
    recompute      the nodes that such plans recompute for gradient passes
    """

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        updates: Updates | None = None,
        mode: str = "train",
        microbatches: int = 1,
        recompute: tuple[str, ...] = (),
    ) -> None:
        assert mode in ("train", "forward"), mode
        self.graph, self.machine, self.mode = graph, machine, mode
        self.microbatches, self.recompute = microbatches, recompute
        self.updates = updates if updates is not None else Updates(find("sgd")())
        self.names = beside.names(graph, self.updates)
        self.templates = Templates()
        self.versions = Versions(machine)
        self.catalogue = Catalogue()
        self._shown: int | None = None
        # The last plan's tasks, as orders and bucket sizes of one plan are tried one after the other.
        self._laid: tuple[Strategy, Composed] | None = None
        self._last: tuple[Strategy, Contracted] | None = None
        self._programs: dict[tuple[frozenset[str], int, int, frozenset[str]], Program] = {}
        self._legal: set[tuple[str, Config]] = set()
        self._numbers: dict[Config, int] = {}
        self._configs: list[Config] = []
        self._homes: dict[tuple[int, Config], Config] = {}
        self._steps: dict[tuple[int, int, int], StepInstance] = {}
        self._step_templates: dict[tuple[int, int], StepTemplate] = {}
        self._flows: dict[tuple[int, int, tuple[int, ...]], FlowInstance] = {}
        # by identity of (boxes, Config), which the values keep alive
        self._ports: dict[tuple[int, int, bool, int], tuple[object, Placed]] = {}
        self._kinds: dict[int, Kinds] = {}
        self._kind_numbers: dict[Hashable, int] = {}
        self._flow_kinds: dict[tuple[int, tuple[int, ...]], FlowTemplate] = {}
        self._flow_templates = FlowTemplates()

    def shortened(self, shown: int) -> Lowering:
        """The same lowering with only `shown` microbatches written out, two or more: the last but one represents those
        that are left out. Templates are shared.
        """
        other = copy(self)
        other._shown, other._laid, other._last = shown, None, None
        return other

    def remade(
        self,
        machine: Machine | None = None,
        mode: str | None = None,
        microbatches: int | None = None,
        recompute: tuple[str, ...] | None = None,
        graph: Graph | None = None,
    ) -> Lowering:
        """A copy of this lowering with other arguments where they are given."""
        return Lowering(
            graph or self.graph,
            machine or self.machine,
            self.updates,
            mode or self.mode,
            self.microbatches if microbatches is None else microbatches,
            self.recompute if recompute is None else recompute,
        )

    def plan(self, configs: Mapping[str, Config]) -> Strategy:
        """A plan with this lowering's microbatches and recomputation."""
        return Strategy(dict(configs), self.microbatches, recompute=self.recompute)

    def program(self, strategy: Strategy) -> Program:
        """The program of a strategy: its passes, and the flows between them."""
        chosen = frozenset(self._asked & strategy.configs.keys())
        count = strategy.microbatches
        key = chosen, count, min(count, self._shown or count), frozenset(strategy.recompute)
        if key not in self._programs:
            if self.mode == "train":
                self._programs[key] = passes.training(self.graph, self.updates, *key)
            else:
                self._programs[key] = passes.forward(self.graph, self.updates, chosen, key[-1])
        return self._programs[key]

    def configs(self, strategy: Strategy) -> dict[str, Config]:
        """The strategy's Configs completed by defaults.

        An update has the layout in which its parameter is used, a state's update that of the state's sources; casts and
        clipping have the layout of the update; the clipping factor and the loss scale are replicated wherever there is
        an update.
        """
        configs = dict(strategy.configs)
        for update, tensor, user, kind in self._users:
            if update not in configs:
                key = kind, configs[user]
                if (home := self._homes.get(key)) is None:
                    nodes = self.names.optional[update], self.names.nodes[user]
                    home = self._homes[key] = self._home(*nodes, tensor, configs[user])
                configs[update] = home
        dropped = {name: self._fetches[name] for name in strategy.recompute if name in self._fetches}
        for name, update in {**self._followers, **dropped}.items():
            configs.setdefault(name, configs[update])
        if self._together:
            procs = {p for param in self.graph.params for p in configs[update_name(param.name)].procs}
            for name in self._everywhere:
                configs.setdefault(name, Config({}, len(procs), tuple(sorted(procs))))
        return configs

    @cached_property
    def deciders(self) -> dict[str, str]:
        """By node of a program with all defaults: the node of the graph whose Config decides its own.

        Nodes that see all gradients, such as the clipping factor, are decided by one node only if all updates are.
        """
        found = {name: name for name in self.graph.nodes} | {update: user for update, _, user, _ in self._users}
        found |= {name: found[update] for name, update in self._followers.items()}
        users = {found[update_name(param.name)] for param in self.graph.params}
        return found | dict.fromkeys(self._everywhere, *users) if len(users) == 1 else found

    def _home(self, update: Node, user: Node, tensor: str, config: Config) -> Config:
        """The default Config of an update: the tensor cut as its user cuts it, with replicas on all its holders."""
        mine, theirs = update.inputs.index(tensor), user.inputs.index(tensor)
        dims = zip(update.alignment.operands[mine].dims, user.alignment.operands[theirs].dims, strict=True)
        free = set(update.alignment.results[0].axes) - update.alignment.frozen
        split = {own[0]: config.degree(of[0]) for own, of in dims if own and of and own[0] in free}
        split = {axis: degree for axis, degree in split.items() if degree > 1}
        pieces = self._boxes(update, split, Port("x", mine, tensor)).by_part
        holders: dict[Box, dict[int, None]] = {box: {} for box in pieces}
        for number, box in enumerate(self._boxes(user, config.split, Port("x", theirs, tensor)).by_part):
            procs = config.procs[number * config.replicas : (number + 1) * config.replicas]
            holders.setdefault(box, {}).update(dict.fromkeys(procs))
        copies = [tuple(sorted(holders[box])) for box in pieces]
        replicas = min(len(c) for c in copies) if copies else 0
        if replicas == 0 or len(holders) > len(copies):
            return Config(procs=(config.procs[0],))
        return Config(split, replicas, tuple(p for c in copies for p in c[:replicas]))

    def _boxes(self, node: Node, split: Mapping[str, int], port: Port) -> Layout:
        """The boxes of an operand or result that the parts of a node touch."""
        return self.templates.grid(node, cuts_of(split)).layout(port)

    @cached_property
    def piece(self) -> Graph:
        """The graph of one microbatch, which plans cut."""
        return samples.piece(self.graph, self.microbatches)

    @cached_property
    def _asked(self) -> frozenset[str]:
        """The names of nodes that exist only where a strategy has a Config for them."""
        params = [param.name for param in self.graph.params]
        return frozenset([name for param in params for name in (fetch_name(param), accumulate_name(param))])

    @cached_property
    def _cast(self) -> list[str]:
        """The parameters that every plan fetches, as they are cast."""
        return sorted(name.rpartition("/")[0] for name in beside.cast(self.graph, self.updates))

    @cached_property
    def _followers(self) -> dict[str, str]:
        """By name of a node with the layout of an update by default: that update. These are casts and clipping."""
        found = {fetch_name(name): update_name(name) for name in self._cast}
        clipped = [param.name for param in self.graph.trained if self._together]
        return found | {f"{name}/{kind}": update_name(name) for name in clipped for kind in ("square_sum", "clip")}

    @cached_property
    def _fetches(self) -> dict[str, str]:
        """By name of a parameter's fetch: its update."""
        return {fetch_name(param.name): update_name(param.name) for param in self.graph.params}

    @cached_property
    def _everywhere(self) -> list[str]:
        """The nodes that are replicated wherever there is an update."""
        return [name for name in (beside.FACTOR, update_name(beside.SCALE)) if name in self._together]

    @cached_property
    def _together(self) -> dict[str, Node]:
        """The nodes that read all gradients."""
        return beside.whole(self.graph, self.updates)

    @cached_property
    def _users(self) -> list[tuple[str, str, str, int]]:
        """For each parameter and state: (update, tensor, node, kind), the tensor and node whose layout the update takes
        by default. Rows of one kind take the same layout where their nodes have the same Config.
        """
        first = {t: n.name for n in reversed(self.graph.nodes.values()) for t in n.inputs}
        # a parameter that a graph for evaluation does not read has no row
        users = [(update_name(p.name), p.name, first[p.name]) for p in self.graph.params if p.name in first]
        for state in self.graph.states:
            update = self.names.optional[update_name(state)]
            read = [t for t in (*update.inputs[1:], state) if t in first]
            if read:
                users.append((update.name, read[0], first[read[0]]))
        numbers: dict[Hashable, int] = {}
        return [(*row, numbers.setdefault(self._home_kind(*row), len(numbers))) for row in users]

    def _home_kind(self, update: str, tensor: str, user: str) -> Hashable:
        """What an update's default layout depends on beside its user's Config."""
        nodes = self.names.optional[update], self.names.nodes[user]
        return tuple([(self.templates.node_kind(node), node.inputs.index(tensor)) for node in nodes])

    def lower(self, strategy: Strategy) -> TaskGraph:
        """The task graph of a plan. Raises ValueError in one sentence where the plan does not fit graph and machine."""
        return self.contracted(strategy).graph

    def check(self, strategy: Strategy) -> None:
        """Raises ValueError in one sentence where a strategy does not fit this graph and machine."""
        # Two microbatches are enough, as all are alike.
        self.shortened(2).steps(strategy)

    def steps(self, strategy: Strategy) -> list[StepInstance]:
        """The instances of a plan's steps, by slot, without flows between them. Raises ValueError as `check` does."""
        program, _, numbers = self._checked(strategy)
        return self._step_instances(program, numbers)

    def contracted(self, strategy: Strategy) -> Contracted:
        """The task graph of a plan, and which tasks were joined in buckets. Raises ValueError as `lower` does."""
        plain = msgspec.structs.replace(strategy, order=READY)
        if self._last is None or self._last[0] != plain:
            self._last = None
            with uncollected():
                found = self._composed(plain).bucketed(plain.bucket_bytes)
                self._last = plain, found._replace(graph=in_transfer_order(found.graph, self.machine.engines))
        return self._last[1]

    def _composed(self, strategy: Strategy) -> Composed:
        """A plan's tasks before any are joined in buckets."""
        plain = msgspec.structs.replace(strategy, bucket_bytes=0)
        if self._laid is None or self._laid[0] != plain:
            self._laid = None
            steps, flows = self.instances(plain)
            tasks = compose(steps, flows, self.machine.num_procs, self.catalogue, plain.ahead)
            self._laid = plain, Composed(steps, flows, tasks)
        return self._laid[1]

    def instances(self, strategy: Strategy, most: float = inf) -> tuple[list[StepInstance], list[FlowInstance]]:
        """A plan's instances: steps by slot, flows by number. Raises ValueError as `lower` does.

        Raises TooManyTransfers, before they are made, where distinct versions have more than `most` transfers in all.
        """
        found = self._checked(strategy)
        if len(self._flows) > KEPT:
            self._steps.clear()
            self._flows.clear()
            self._flow_kinds.clear()
            self._flow_templates.clear()
            self.catalogue.clear()
            self._legal.clear()
        return self.instances_of(*found, most)

    def _checked(self, strategy: Strategy) -> tuple[Program, dict[str, Config], dict[str, int]]:
        """A plan's program, its Configs and their numbers. Raises ValueError where a check without steps fails."""
        check(strategy, self.names, self.graph, self.machine, self._legal)
        self._legal.update(strategy.configs.items())
        configs = self.configs(strategy)
        return self.program(strategy), configs, dict(zip(configs, map(self.number, configs.values())))

    def number(self, config: Config) -> int:
        """The number of a Config: equal Configs have the same."""
        found = self._numbers.setdefault(config, len(self._configs))
        if found == len(self._configs):
            self._configs.append(config)
        return found

    def instances_of(
        self, program: Program, configs: dict[str, Config], numbers: dict[str, int], most: float = inf
    ) -> tuple[list[StepInstance], list[FlowInstance]]:
        """The instances of a program whose nodes have these Configs, with the given numbers."""
        steps = self._step_instances(program, numbers)
        return steps, self._flow_instances(program, configs, numbers, steps, most)

    def kinds(self, program: Program) -> Kinds:
        """The kinds of a program's steps and flows."""
        if id(program) not in self._kinds:
            self._kinds[id(program)] = Kinds(program, self.templates, self._kind_numbers)
        return self._kinds[id(program)]

    def _step_instances(self, program: Program, numbers: Mapping[str, int]) -> list[StepInstance]:
        known, kinds, found = self._steps, self.kinds(program), list[StepInstance]()
        for key in zip(repeat(id(program)), count(), map(numbers.__getitem__, kinds.nodes)):
            if (instance := known.get(key)) is None:
                _, slot, number = key
                step = program.steps[slot]
                template = self._step_template(program, step, (kinds.step[slot], number))
                instance = known[key] = StepInstance(step, template, self._configs[number])
            found.append(instance)
        return found

    def _step_template(self, program: Program, step: Step, alike: tuple[int, int]) -> StepTemplate:
        """The template of a step.

        alike   the step's kind and the number of its Config
        """
        if alike not in self._step_templates:
            config = self._configs[alike[1]]
            _check_micro(step, config)
            self._step_templates[alike] = self.templates.get(step, config.split, program.dtypes.__getitem__)
        return self._step_templates[alike]

    def _flow_instances(
        self, program: Program, configs: dict[str, Config], numbers: dict[str, int], steps: Sequence[StepInstance],
        most: float,
    ) -> list[FlowInstance]:  # fmt: skip
        kinds, known, templates, found = self.kinds(program), self._flows, self._flow_kinds, list[FlowInstance]()
        counted, left = set[Version](), most
        for key in zip(repeat(id(program)), count(), [of_users(numbers) for of_users in kinds.of_users]):
            if (instance := known.get(key)) is None:
                _, number, chosen = key
                flow, slots, alike = program.flows[number], program.slots[number], (kinds.flow[number], chosen)
                if (template := templates.get(alike)) is None:
                    template = templates[alike] = self._flow_template(flow, slots, configs, steps, left)
                instance = known[key] = FlowInstance(flow, template, slots)
            found.append(instance)
            if most < inf and (version := instance.version) not in counted:
                counted.add(version)
                left -= len(version.patterns)
                if left < 0:
                    raise TooManyTransfers
        return found

    def _flow_template(
        self, flow: Flow, slots: Sequence[int], configs: dict[str, Config], steps: Sequence[StepInstance], most: float
    ) -> FlowTemplate:
        made = [self.placed(steps[slot], port, True) for slot, port in flow.producers]
        read = [self.placed(steps[slot], port, False) for slot, port in flow.readers]
        overwritten = [self.placed(steps[slot], port, True) for slot, port in flow.overwriters]
        there = made if flow.home is None else [self.at_home(flow.home, configs)]
        seen = [*read, self.versions.on_host(flow.shape)] if flow.role == "output" else read
        version, procs = self.versions.get(flow, there, seen, most)
        return self._flow_templates.get(flow, slots, version, procs, made, read, overwritten)

    def at_home(self, home: Home, configs: Mapping[str, Config]) -> Placed:
        """The layout of a carried region: as its update writes it."""
        config = configs[home.node.name]
        return self.versions.placed(self._boxes(home.node, config.split, Port("y", home.result, "")).by_part, config)

    def placed(self, step: StepInstance, port: int, output: bool) -> Placed:
        """The layout of a step's port."""
        owners = step.template.known(port, output), step.config
        key = id(owners[0]), port, output, id(owners[1])
        found = self._ports.get(key)
        if found is None:
            boxes = step.template.boxes(port, output)
            are_apart = step.template.are_apart(port, output)
            found = self._ports[key] = owners, self.versions.placed(boxes, step.config, are_apart)
        return found[1]


def _check_micro(step: Step, config: Config) -> None:
    if step.axis and config.degree(step.axis) > step.node.alignment.extents[step.axis] // step.micro.count:
        raise ValueError(
            f"{step.node.name}: one of {step.micro.count} microbatches has fewer samples than axis {step.axis!r} is to "
            f"have parts, {config.degree(step.axis)}: use fewer microbatches or a smaller degree"
        )

"""Lowering: a plan becomes tasks, once. The only place where that happens; what is simulated is what is executed.

Templates are made once for (operator, local shapes, split) and once for each region version's layouts; instances of
them are kept while their Configs stay, so a changed Config remakes its own steps and the versions that these touch.
It does not know time: the order of tasks is the simulator's affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from castile.planner import program as programs
from castile.planner.compose import compose
from castile.planner.graph import Graph, Node
from castile.planner.instances import FlowInstance, StepInstance, flow_instance
from castile.planner.op import Op, find
from castile.planner.program import Flow, Program
from castile.planner.strategy import Config, Strategy, check, parts
from castile.planner.template import Templates
from castile.planner.versions import Placed, Versions
from castile.runtime.machine import Machine
from castile.runtime.region import Box, whole
from castile.runtime.task import TaskGraph

# Instances kept for reuse; a search that has seen more begins anew.
KEPT = 200_000


class Lowering:
    """Lowers many strategies of one graph on one machine, sharing templates among them.

    mode   "train": a whole step with updates;  "forward": to the graph's outputs, over the same parameters
    """

    def __init__(self, graph: Graph, machine: Machine, optimizer: Op | None = None, mode: str = "train") -> None:
        assert mode in ("train", "forward"), mode
        self.graph, self.machine, self.mode = graph, machine, mode
        self.optimizer = optimizer if optimizer is not None else find("sgd")()
        self.names = programs.names(graph, self.optimizer)
        self.templates = Templates()
        self._versions = Versions(machine)
        self._programs: dict[frozenset[str], Program] = {}
        self._numbers: dict[Config, int] = {}
        self._homes: dict[tuple[str, Config], Config] = {}
        self._steps: dict[tuple[int, int, int], StepInstance] = {}
        self._flows: dict[tuple[int, int, tuple[int, ...]], FlowInstance] = {}

    def program(self, strategy: Strategy) -> Program:
        """The passes that a strategy asks for."""
        chosen = frozenset(n for n in strategy.configs if n in self.names.optional and not n.endswith("/update"))
        if chosen not in self._programs:
            make = programs.training if self.mode == "train" else programs.forward
            self._programs[chosen] = make(self.graph, self.optimizer, chosen)
        return self._programs[chosen]

    def configs(self, strategy: Strategy) -> dict[str, Config]:
        """The strategy's Configs, and for updates that it leaves open the layout in which the parameter is used."""
        configs = dict(strategy.configs)
        for update, param, user in self._users:
            if update not in configs:
                key = (update, configs[user])
                if key not in self._homes:
                    nodes = self.names.optional[update], self.names.nodes[user]
                    self._homes[key] = _home(*nodes, param, configs[user])
                configs[update] = self._homes[key]
        return configs

    @cached_property
    def _users(self) -> list[tuple[str, str, str]]:
        """Each parameter's update, the parameter, and the first node that uses it."""
        first = {t: n.name for n in reversed(self.graph.nodes.values()) for t in n.inputs}
        return [(programs.update_name(p.name), p.name, first[p.name]) for p in self.graph.params]

    def lower(self, strategy: Strategy) -> TaskGraph:
        """The task graph of a plan. Raises ValueError in one sentence where the plan does not fit graph and machine."""
        check(strategy, self.names, self.graph, self.machine)
        program, configs = self.program(strategy), self.configs(strategy)
        if len(self._flows) > KEPT:
            self._steps.clear()
            self._flows.clear()
        numbers = {name: self._numbers.setdefault(config, len(self._numbers)) for name, config in configs.items()}
        steps = self._step_instances(program, configs, numbers)
        return compose(steps, self._flow_instances(program, configs, numbers, steps), self.machine.num_procs)

    def _step_instances(
        self, program: Program, configs: dict[str, Config], numbers: dict[str, int]
    ) -> list[StepInstance]:
        dtypes = program.dtypes.__getitem__
        instances = []
        for step in program.steps:
            name = step.node.name
            key = (id(program), step.slot, numbers[name])
            if key not in self._steps:
                template = self.templates.get(step, configs[name].split, dtypes)
                self._steps[key] = StepInstance(step, template, configs[name])
            instances.append(self._steps[key])
        return instances

    def _flow_instances(
        self, program: Program, configs: dict[str, Config], numbers: dict[str, int], steps: Sequence[StepInstance]
    ) -> list[FlowInstance]:
        instances = []
        for number, (flow, users) in enumerate(zip(program.flows, program.users, strict=True)):
            key = (id(program), number, tuple(numbers[name] for name in users))
            if key not in self._flows:
                self._flows[key] = self._flow_instance(flow, configs, steps)
            instances.append(self._flows[key])
        return instances

    def _flow_instance(self, flow: Flow, configs: dict[str, Config], steps: Sequence[StepInstance]) -> FlowInstance:
        made = [_placed(steps[slot], port, True) for slot, port in flow.producers]
        read = [_placed(steps[slot], port, False) for slot, port in flow.readers]
        if flow.role == "output":
            read.append(Placed(("whole", flow.shape), (whole(flow.shape),), Config()))
        if flow.home is not None:
            made = [_at_home(flow, configs)]
        version, procs = self._versions.get(flow, made, read)
        return flow_instance(flow, version, procs, steps)


def _at_home(flow: Flow, configs: dict[str, Config]) -> Placed:
    """Where a carried region lies: as its update writes it."""
    assert flow.home is not None
    config = configs[flow.home.node.name]
    boxes = tuple(p.writes(flow.home.result) for p in parts(flow.home.node, config.split))
    return Placed((flow.shape, tuple(sorted(config.split.items()))), boxes, config)


def _placed(instance: StepInstance, port: int, output: bool) -> Placed:
    """Where a port's boxes lie: the identity of their layout, the boxes by part, and the Config that places them."""
    boxes = tuple(instance.template.box(part, port, output) for part in range(len(instance.template.parts)))
    return Placed((id(instance.template), port, output), boxes, instance.config)


def _home(update: Node, user: Node, param: str, config: Config) -> Config:
    """Keep a parameter where its first user needs it: cut as that user cuts it, alike on all who hold a piece."""
    operand = user.inputs.index(param)
    dims = user.alignment.operands[operand].dims
    split = {axis: config.degree(dim[0]) for axis, dim in zip(update.alignment.axes, dims, strict=False)}
    split = {axis: degree for axis, degree in split.items() if degree > 1}
    holders: dict[Box, dict[int, None]] = {p.writes(0): {} for p in parts(update, split)}
    for number, part in enumerate(parts(user, config.split)):
        procs = config.procs[number * config.replicas : (number + 1) * config.replicas]
        holders.setdefault(part.reads(operand), {}).update(dict.fromkeys(procs))
    copies = [tuple(sorted(holders[p.writes(0)])) for p in parts(update, split)]
    replicas = min(len(c) for c in copies) if copies else 0
    if replicas == 0 or len(holders) > len(copies):
        return Config(procs=(config.procs[0],))
    return Config(split, replicas, tuple(p for c in copies for p in c[:replicas]))

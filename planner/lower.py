"""Lowering: a plan becomes tasks, once. The only place where that happens; what is simulated is what is executed.

Templates are made once for (operator, local shapes, split) and once for each region version's layouts; instances of
them lie in flat arrays. It does not know time: the order of tasks is the simulator's affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from castile.planner import program as programs
from castile.planner.graph import Graph, Node
from castile.planner.op import Op, find
from castile.planner.program import Flow, Program, Step
from castile.planner.strategy import Config, Strategy, check, parts
from castile.planner.template import StepTemplate, Templates
from castile.planner.versions import Placed, Versions
from castile.runtime.dependence import Version
from castile.runtime.machine import Machine
from castile.runtime.region import Box, whole
from castile.runtime.task import NUM_LANES, Buffer, Comm, CostKey, Kind, Lane, Task, TaskGraph, View

ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class StepInstance:
    """A step under its Config: task base + part * replicas + replica; buffers[port][task], adds[output][task]."""

    step: Step
    template: StepTemplate
    config: Config
    base: int
    buffers: np.ndarray
    adds: np.ndarray

    @property
    def num_tasks(self) -> int:
        return len(self.config.procs)

    def task(self, number: int) -> Task:
        local = number - self.base
        part, replica = divmod(local, self.config.replicas)
        piece = self.template.parts[part]
        boxes = (*piece.inputs, *piece.outputs)
        views = [View(int(b), box) for b, box in zip(self.buffers[:, local], boxes, strict=True) if box is not None]
        copy = f"~{replica}" if self.config.replicas > 1 else ""
        body = piece.body(tuple(bool(a) for a in self.adds[:, local]))
        name = f"{self.step.name}[{part}{copy}]"
        return Task(number, name, Kind.COMPUTE, (self.config.procs[local],), tuple(views), body)


@dataclass(frozen=True, eq=False)
class FlowInstance:
    """A version of a region: its transfers are tasks base.., its instances buffers first_buffer..; procs[slot]."""

    flow: Flow
    version: Version
    procs: tuple[int, ...]
    base: int
    first_buffer: int
    roles: tuple[str, ...]

    def task(self, number: int) -> Task:
        pattern = self.version.patterns[number - self.base]
        procs = tuple(self.procs[s] for s in pattern.procs)
        name = f"{self.flow.region}:{pattern.name}[{number - self.base}]"
        views = tuple(self._view(v) for v in pattern.views)
        return Task(number, name, pattern.kind, procs, views, pattern.body, pattern.comm and self._comm(pattern.comm))

    def _view(self, view: View) -> View:
        return view._replace(buffer=view.buffer + self.first_buffer)

    def _comm(self, comm: Comm) -> Comm:
        def moved(views: Sequence[View | None]) -> tuple[View | None, ...]:
            return tuple(v and self._view(v) for v in views)

        group = tuple(self.procs[s] for s in comm.group)
        return Comm(comm.form, group, moved(comm.send), moved(comm.receive), moved(comm.scratch), comm.counts)

    def buffer(self, number: int) -> Buffer:
        local = number - self.first_buffer
        instance = self.version.instances[local]
        return Buffer(self.flow.region, instance.box, self.flow.dtype, self.procs[instance.proc], self.roles[local])


class Tasks(Sequence):
    """The tasks of a lowered graph, each written out when it is asked for."""

    def __init__(self, instances: Sequence[StepInstance | FlowInstance], bases: np.ndarray, total: int) -> None:
        self._instances, self._bases, self._total = instances, bases, total

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        if not 0 <= number < self._total:
            raise IndexError(number)
        return self._instances[int(np.searchsorted(self._bases, number, side="right")) - 1].task(int(number))


class Buffers(Sequence):
    """The buffers of a lowered graph, each written out when it is asked for."""

    def __init__(self, instances: Sequence[FlowInstance], bases: np.ndarray, total: int) -> None:
        self._instances, self._bases, self._total = instances, bases, total

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        if not 0 <= number < self._total:
            raise IndexError(number)
        return self._instances[int(np.searchsorted(self._bases, number, side="right")) - 1].buffer(int(number))


class Lowering:
    """Lowers many strategies of one graph on one machine, sharing templates among them.

    mode   "train": a whole step with updates;  "forward": to the graph's outputs, over the same parameters
    """

    def __init__(self, graph: Graph, machine: Machine, optimizer: Op | None = None, mode: str = "train") -> None:
        assert mode in ("train", "forward"), mode
        self.graph, self.machine, self.mode = graph, machine, mode
        self.optimizer = optimizer if optimizer is not None else find("sgd")()
        self.names = programs.names(graph, self.optimizer)
        self._templates = Templates()
        self._versions = Versions(machine)
        self._programs: dict[frozenset[str], Program] = {}

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
        for param in self.graph.params:
            name = programs.update_name(param.name)
            if name not in configs:
                configs[name] = _home(self.graph, self.names.optional[name], param.name, configs)
        return configs

    def lower(self, strategy: Strategy) -> TaskGraph:
        """The task graph of a plan. Raises ValueError in one sentence where the plan does not fit graph and machine."""
        check(strategy, self.names, self.graph, self.machine)
        program, configs = self.program(strategy), self.configs(strategy)
        steps = list(self._steps(program, configs))
        flows = list(self._flows(program, configs, steps))
        return compose(steps, flows, self.machine.num_procs)

    def _steps(self, program: Program, configs: dict[str, Config]) -> Iterator[StepInstance]:
        dtypes = {f.region: f.dtype for f in program.flows}.__getitem__
        base = 0
        for step in program.steps:
            config = configs[step.node.name]
            template = self._templates.get(step, config.split, dtypes)
            ports = len(step.inputs) + len(step.outputs)
            buffers = np.full((ports, len(config.procs)), -1, dtype=np.int64)
            adds = np.zeros((len(step.outputs), len(config.procs)), dtype=bool)
            yield StepInstance(step, template, config, base, buffers, adds)
            base += len(config.procs)

    def _flows(self, program: Program, configs: dict[str, Config], steps: list[StepInstance]) -> Iterator[FlowInstance]:
        base, first_buffer = sum(s.num_tasks for s in steps), 0
        for flow in program.flows:
            made = [_placed(steps[slot], port, True) for slot, port in flow.producers]
            read = [_placed(steps[slot], port, False) for slot, port in flow.readers]
            if flow.role == "output":
                read.append(Placed(("whole", flow.shape), (whole(flow.shape),), Config()))
            if flow.home is not None:
                made = [self._at_home(flow, configs)]
            version, procs = self._versions.get(flow, made, read)
            roles = _roles(flow, version)
            instance = FlowInstance(flow, version, procs, base, first_buffer, roles)
            _connect(instance, steps)
            yield instance
            base += len(version.patterns)
            first_buffer += len(version.instances)

    def _at_home(self, flow: Flow, configs: dict[str, Config]) -> Placed:
        assert flow.home is not None
        node, result = flow.home.node, flow.home.result
        config = configs[node.name]
        boxes = tuple(p.writes(result) for p in parts(node, config.split))
        return Placed((flow.shape, tuple(sorted(config.split.items()))), boxes, config)


def _placed(instance: StepInstance, port: int, output: bool) -> Placed:
    """Where a port's boxes lie: the identity of their layout, the boxes by part, and the Config that places them."""
    boxes = tuple(instance.template.box(part, port, output) for part in range(len(instance.template.parts)))
    return Placed((id(instance.template), port, output), boxes, instance.config)


def _roles(flow: Flow, version: Version) -> tuple[str, ...]:
    """What outlives the step: sources of carried and input regions, and what the host reads."""
    roles = ["" for _ in version.instances]
    if flow.role in ("carried", "input"):
        roles = [flow.role if i.kind == "source" else "" for i in version.instances]
    if flow.role == "output":
        roles[int(version.located[-1])] = "output"
    return tuple(roles)


def _connect(instance: FlowInstance, steps: list[StepInstance]) -> None:
    """Tell the steps which buffers their ports touch."""
    flow, version = instance.flow, instance.version
    made = version.made + instance.first_buffer
    for ports, values, extra in (
        (flow.producers, made, version.adds),
        (flow.readers, version.located + instance.first_buffer, None),
        (flow.overwriters, made, None),
    ):
        offset = 0
        for slot, port in ports:
            step = steps[slot]
            output = ports is not flow.readers
            row = port + (len(step.step.inputs) if output else 0)
            local = _touching(step, port, output)
            step.buffers[row, local] = values[offset : offset + len(local)]
            if extra is not None:
                step.adds[port, local] = extra[offset : offset + len(local)]
            offset += len(local)


def _touching(step: StepInstance, port: int, output: bool) -> np.ndarray:
    """The step's tasks (counted from its base) that touch a port, in order."""
    touched = [step.template.box(part, port, output) is not None for part in range(len(step.template.parts))]
    return np.flatnonzero(np.repeat(touched, step.config.replicas))


def _home(graph: Graph, update: Node, param: str, configs: dict[str, Config]) -> Config:
    """Keep a parameter where its first user needs it: cut as that user cuts it, a replica for each that holds a piece."""
    user = next(n for n in graph.nodes.values() if param in n.inputs)
    config, operand = configs[user.name], user.inputs.index(param)
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


def compose(steps: Sequence[StepInstance], flows: Sequence[FlowInstance], num_procs: int) -> TaskGraph:
    """Lay all instances end to end in flat arrays; edges between them come from the versions they share."""
    keys: dict[CostKey, int] = {}
    kind, order, cost, private, lane_count, lanes = [], [], [], [], [], []
    for s in steps:
        distinct, of_part = s.template.keys
        numbers = np.array([keys.setdefault(k, len(keys)) for k in distinct], dtype=np.int64)
        n = s.num_tasks
        kind.append(np.full(n, Kind.COMPUTE, dtype=np.int8))
        order.append((s.step.slot << 40) + np.arange(n, dtype=np.int64))
        cost.append(np.repeat(numbers[of_part], s.config.replicas))
        private.append(_private(s))
        lane_count.append(np.ones(n, dtype=np.int64))
        lanes.append(np.array(s.config.procs, dtype=np.int64) * NUM_LANES + Lane.COMPUTE)
    for number, f in enumerate(flows):
        patterns = f.version.patterns
        slot = max((s for s, _ in f.flow.producers), default=min((s for s, _ in f.flow.readers), default=0))
        kind.append(np.array([p.kind for p in patterns], dtype=np.int8))
        order.append((slot << 40) + ((number + 1) << 20) + np.arange(len(patterns), dtype=np.int64))
        cost.append(np.array([keys.setdefault(p.key, len(keys)) for p in patterns], dtype=np.int64))
        private.append(np.array([p.body.private_bytes for p in patterns], dtype=np.int64))
        of_pattern = [_lanes(p.kind, tuple(f.procs[s] for s in p.procs)) for p in patterns]
        lane_count.append(np.array([len(x) for x in of_pattern], dtype=np.int64))
        lanes.append(np.array([lane for x in of_pattern for lane in x], dtype=np.int64))
    num_tasks = sum(map(len, kind))
    num_buffers = sum(len(f.version.instances) for f in flows)
    edges, touched, first = _edges(steps, flows)
    need_ptr, needs = _rows(edges[:, 1], edges[:, 0], num_tasks)
    use_ptr, uses = _rows(touched[:, 0], touched[:, 1], num_tasks)
    instances: list[StepInstance | FlowInstance] = [*steps, *(f for f in flows if f.version.patterns)]
    held = [f for f in flows if f.version.instances]
    return TaskGraph(
        kind=_join(kind, np.int8),
        order=_join(order),
        cost=_join(cost),
        cost_keys=tuple(keys),
        lane_ptr=np.concatenate([[0], np.cumsum(_join(lane_count))]),
        lanes=_join(lanes),
        need_ptr=need_ptr,
        needs=needs,
        use_ptr=use_ptr,
        uses=uses,
        buffer_proc=_join([np.array([f.procs[i.proc] for i in f.version.instances], dtype=np.int64) for f in held]),
        buffer_bytes=_join([_sizes(f) for f in held]),
        buffer_first=first,
        private_bytes=_join(private),
        num_procs=num_procs,
        tasks=Tasks(instances, np.array([i.base for i in instances]), num_tasks),
        buffers=Buffers(held, np.array([f.first_buffer for f in held]), num_buffers),
    )


def _join(arrays: Sequence[np.ndarray], dtype: type = np.int64) -> np.ndarray:
    return np.concatenate(arrays).astype(dtype) if arrays else np.zeros(0, dtype)


def _lanes(kind: Kind, procs: tuple[int, ...]) -> list[int]:
    if kind == Kind.MOVE:
        return [procs[0] * NUM_LANES + Lane.SEND, procs[1] * NUM_LANES + Lane.RECEIVE]
    lane = Lane.COLLECTIVE if kind == Kind.COLLECTIVE else Lane.COMPUTE
    return [p * NUM_LANES + lane for p in procs]


def _private(s: StepInstance) -> np.ndarray:
    """Private bytes by task; a part that adds to a result may need more than one that writes it."""
    result = np.empty(s.num_tasks, dtype=np.int64)
    for local, adds in enumerate(map(tuple, s.adds.T.tolist())):
        result[local] = s.template.parts[local // s.config.replicas].body(adds).private_bytes
    return result


def _sizes(f: FlowInstance) -> np.ndarray:
    itemsize = np.dtype(f.flow.dtype).itemsize
    sizes = np.array([prod(i.box.shape) * itemsize for i in f.version.instances], dtype=np.int64)
    return -(-sizes // ALIGNMENT) * ALIGNMENT


def _edges(
    steps: Sequence[StepInstance], flows: Sequence[FlowInstance]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All (before, after) edges, all (task, buffer) uses, and the task that begins each buffer's life."""
    edges, touched, first = [], [], []
    for f in flows:
        ports = np.concatenate([*_ports(f, steps), [-1]])
        edges.append(ports[f.version.edges])
        tasks, buffers = f.version.touched.T
        touched.append(np.stack([ports[tasks], buffers + f.first_buffer], axis=1))
        begins = np.where(f.version.first >= 0, ports[f.version.first], -1)
        begins[[bool(role) for role in f.roles]] = -1
        first.append(begins)
    all_edges, all_touched = np.concatenate(edges), np.concatenate(touched)
    real = (all_edges[:, 0] != all_edges[:, 1]) & (all_edges >= 0).all(axis=1)
    return all_edges[real], all_touched[all_touched[:, 0] >= 0], _join(first)


def _ports(f: FlowInstance, steps: Sequence[StepInstance]) -> list[np.ndarray]:
    """The task of each port of a version, in the order of its numbering; -1 for the host."""
    made = [steps[slot].base + _touching(steps[slot], port, True) for slot, port in f.flow.producers]
    transfers = [f.base + np.arange(len(f.version.patterns), dtype=np.int64)]
    read = [steps[slot].base + _touching(steps[slot], port, False) for slot, port in f.flow.readers]
    host = [np.array([-1], dtype=np.int64)] if f.flow.role == "output" else []
    over = [steps[slot].base + _touching(steps[slot], port, True) for slot, port in f.flow.overwriters]
    return [*made, *transfers, *read, *host, *over]


def _rows(rows: np.ndarray, values: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Compressed rows with sorted, unique values."""
    pairs = np.unique(np.stack([rows, values], axis=1), axis=0) if len(rows) else np.zeros((0, 2), dtype=np.int64)
    pointer = np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 0].astype(np.int64), minlength=num_rows))])
    return pointer, pairs[:, 1].astype(np.int64)

"""Programs: the passes of one training step (or of a forward pass) in order, and the versions of regions between them.

Everything is an operator with a Config: between a parameter's home and its use may stand a `fetch`, between its
gradient and its update an `accumulate`, and the update is a node. It does not know strategies, processors or costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from castile.planner.graph import Graph, Node
from castile.planner.op import Op, Tensor, find
from castile.planner.strategy import Names
from castile.planner.vocabulary import Spec

GRADIENT, FETCHED, ACCUMULATED, RATE = "/grad", "/fetched", "/accumulated", "lr"


@dataclass(frozen=True)
class Port:
    """What a pass touches: operand ("x"), result ("y"), or the gradient of either ("dy", "dx"), by number."""

    role: str
    index: int
    region: str


@dataclass(frozen=True)
class Step:
    """One pass of one node; its place in the program is its slot."""

    slot: int
    node: Node
    which: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @property
    def name(self) -> str:
        return f"{self.node.name}.{self.which}"


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
    names: Names

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


@dataclass
class _Draft:
    graph: Graph
    steps: list[Step] = field(default_factory=list)
    specs: dict[str, Spec] = field(default_factory=dict)
    homes: dict[str, Home] = field(default_factory=dict)

    def add(self, node: Node, which: str, inputs: Iterable[Port], outputs: Iterable[Port]) -> None:
        self.steps.append(Step(len(self.steps), node, which, tuple(inputs), tuple(outputs)))


def update_name(param: str) -> str:
    return f"{param}/update"


def fetch_name(param: str) -> str:
    return f"{param}/fetch"


def accumulate_name(param: str) -> str:
    return f"{param}/accumulate"


def names(graph: Graph, optimizer: Op | None) -> Names:
    """The names that a strategy for this graph may and must use."""
    optional = {}
    for param in graph.params:
        optional[fetch_name(param.name)] = _apart(graph, "fetch", param)
        if optimizer is not None:
            optional[accumulate_name(param.name)] = _apart(graph, "accumulate", param)
            optional[update_name(param.name)] = _update(optimizer, param)
    return Names(graph.nodes, optional)


def training(graph: Graph, optimizer: Op, chosen: frozenset[str]) -> Program:
    """The program of one training step. `chosen` are the fetch and accumulate nodes that the strategy asks for."""
    if not graph.loss:
        raise ValueError(f"{graph.name} has no loss to minimise")
    draft = _draft(graph, optimizer)
    used = _parameter_source(draft, chosen)
    _forward(draft, used, graph.nodes.values())
    gradients = _backward(draft, used)
    _updates(draft, optimizer, gradients, chosen)
    return Program(graph, tuple(draft.steps), _flows(draft, {graph.loss}), names(graph, optimizer))


def forward(graph: Graph, optimizer: Op, chosen: frozenset[str]) -> Program:
    """The program of a forward pass to the graph's outputs, over parameters that lie where training keeps them."""
    draft = _draft(graph, optimizer)
    needed = _needed(graph, graph.outputs)
    params = {i for n in needed for i in n.inputs if graph.tensors[i].param}
    used = _parameter_source(draft, frozenset(c for c in chosen if c.rpartition("/")[0] in params))
    _forward(draft, used, needed)
    return Program(graph, tuple(draft.steps), _flows(draft, set(graph.outputs)), names(graph, optimizer))


def _draft(graph: Graph, optimizer: Op) -> _Draft:
    draft = _Draft(graph, specs={t.name: Spec(t.shape, t.dtype) for t in graph.tensors.values()})
    for param in graph.params:
        node = _update(optimizer, param)
        for result, region in enumerate(node.outputs):
            draft.homes[region] = Home(node, result)
            draft.specs[region] = Spec(param.shape, param.dtype)
    return draft


def _needed(graph: Graph, outputs: Iterable[str]) -> list[Node]:
    wanted = set(outputs)
    for node in reversed(graph.nodes.values()):
        if wanted & set(node.outputs):
            wanted.update(node.inputs)
    return [n for n in graph.nodes.values() if wanted & set(n.outputs)]


def _apart(graph: Graph, kind: str, param: Tensor) -> Node:
    op = find(kind)()
    return Node(f"{param.name}/{kind}", op, (param.name,), (f"{param.name}/{kind}ed",), op.bind((param,), param.name))


def _update(optimizer: Op, param: Tensor) -> Node:
    state = [Tensor(f"{param.name}/{label}", param.shape, param.dtype, param.axes) for label in optimizer.results[1:]]
    rate = Tensor(RATE, (), param.dtype, ())
    gradient = Tensor(param.name + GRADIENT, param.shape, param.dtype, param.axes)
    inputs = (param, gradient, *state, rate)
    name = update_name(param.name)
    outputs = (param.name, *(t.name for t in state))
    return Node(name, optimizer, tuple(t.name for t in inputs), outputs, optimizer.bind(inputs, name))


def _parameter_source(draft: _Draft, chosen: frozenset[str]) -> dict[str, str]:
    """Where each parameter is read from: its home, or what its fetch made of it."""
    source = {}
    for param in draft.graph.params:
        source[param.name] = param.name
        if fetch_name(param.name) in chosen:
            node = _apart(draft.graph, "fetch", param)
            source[param.name] = param.name + FETCHED
            draft.specs[param.name + FETCHED] = draft.specs[param.name]
            draft.add(node, "F", [Port("x", 0, param.name)], [Port("y", 0, param.name + FETCHED)])
    return source


def _operands(node: Node, used: dict[str, str]) -> list[Port]:
    return [Port("x", i, used.get(t, t)) for i, t in enumerate(node.inputs)]


def _forward(draft: _Draft, used: dict[str, str], nodes: Iterable[Node]) -> None:
    for node in nodes:
        draft.add(node, "F", _operands(node, used), [Port("y", j, t) for j, t in enumerate(node.outputs)])


def _backward(draft: _Draft, used: dict[str, str]) -> set[str]:
    """Gradient passes in reverse order; returns the tensors that have a gradient."""
    graph = draft.graph
    learned = {t.name for t in graph.params}
    for node in graph.nodes.values():
        if learned & set(node.inputs):
            learned.add(node.outputs[0])
    arriving = {graph.loss}
    for node in reversed(graph.nodes.values()):
        result = node.outputs[0]
        if result not in arriving or result not in learned:
            continue
        for which, params in (("B", False), ("W", True)):
            wanted = [
                (i, t) for i, t in enumerate(node.inputs)
                if node.alignment.operands[i].param == params and t in learned and graph.tensors[t].floating
            ]  # fmt: skip
            if not wanted:
                continue
            inputs = [Port("dy", 0, result + GRADIENT), *_operands(node, used)]
            if "y" in node.op.asks(which):
                inputs += [Port("y", j, t) for j, t in enumerate(node.outputs)]
            draft.add(node, which, inputs, [Port("dx", i, t + GRADIENT) for i, t in wanted])
            arriving.update(t for _, t in wanted)
    return arriving


def _updates(draft: _Draft, optimizer: Op, gradients: set[str], chosen: frozenset[str]) -> None:
    """Accumulators and updates of every parameter."""
    for param in draft.graph.params:
        if param.name not in gradients:
            raise ValueError(f"parameter {param.name!r} has no influence on the loss {draft.graph.loss!r}")
        gradient = param.name + GRADIENT
        if accumulate_name(param.name) in chosen:
            node = _apart(draft.graph, "accumulate", param)
            draft.specs[param.name + ACCUMULATED] = draft.specs[param.name]
            draft.add(node, "F", [Port("x", 0, gradient)], [Port("y", 0, param.name + ACCUMULATED)])
            gradient = param.name + ACCUMULATED
        node = _update(optimizer, param)
        regions = [gradient if t == param.name + GRADIENT else t for t in node.inputs]
        draft.specs[RATE] = Spec((), param.dtype)
        inputs = [Port("x", i, region) for i, region in enumerate(regions)]
        draft.add(node, "F", inputs, [Port("y", j, t) for j, t in enumerate(node.outputs)])


def _flows(draft: _Draft, outputs: set[str]) -> tuple[Flow, ...]:
    """Who produces and who reads each region, in program order."""
    producers: dict[str, list[tuple[int, int]]] = {}
    readers: dict[str, list[tuple[int, int]]] = {}
    for step in draft.steps:
        for n, port in enumerate(step.outputs):
            producers.setdefault(port.region, []).append((step.slot, n))
        for n, port in enumerate(step.inputs):
            readers.setdefault(port.region, []).append((step.slot, n))
    flows = []
    for region in dict.fromkeys((*readers, *producers)):
        made, read = tuple(producers.get(region, ())), tuple(readers.get(region, ()))
        spec = draft.specs.get(region) or draft.specs[region.removesuffix(GRADIENT)]
        if region in draft.homes:
            flows.append(Flow(region, spec.shape, spec.dtype, "carried", (), read, draft.homes[region], made))
        else:
            role = "output" if region in outputs else "" if made else "input"
            flows.append(Flow(region, spec.shape, spec.dtype, role, made, read))
    return tuple(flows)

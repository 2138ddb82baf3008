"""The passes of a program: forward, gradients in reverse, clipping, accumulators and updates, microbatch by microbatch.

Everything is an operator with a Config: between a parameter's home and its use may stand a `fetch`, between its
gradient and its update an `accumulate`, and the update is a node; so is the renewal of a state. It does not know
strategies, processors or costs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add

from castile.planner import beside, samples
from castile.planner.beside import FACTOR, NORM, NUMBER, SCALE, SQUARES, apart, cast, is_scaled, state_updates, update
from castile.planner.flows import flows
from castile.planner.graph import Graph, Node
from castile.planner.handed import HandedOn, recorded
from castile.planner.program import (
    ACCUMULATED,
    CLIPPED,
    FETCHED,
    GRADIENT,
    WHOLE_BATCH,
    Home,
    Micro,
    Port,
    Program,
    Step,
    accumulate_name,
    fetch_name,
    of_micro,
    update_name,
)
from castile.planner.samples import Samples
from castile.planner.updates import Updates, filled
from castile.planner.vocabulary import Spec

# A tensor, and where in its gradient a piece of that begins.
Place = tuple[str, tuple[int, ...]]


@dataclass
class _Draft:
    """A program under construction; specs: what each region holds; renewals: the update of each parameter.

    shown    of so many microbatches at most the passes are written out
    source   where parameters are read from that were fetched. slope: where the loss's gradient is, if it has a place
    same     tensors whose gradient is a piece of that of another, or all of it, and which: the two are one region
    ports    of operands and results of each node, for all of its passes in a microbatch
    """

    graph: Graph
    updates: Updates
    samples: Samples
    count: int = 1
    shown: int = 1
    steps: list[Step] = field(default_factory=list)
    specs: dict[str, Spec] = field(default_factory=dict)
    homes: dict[str, Home] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    slope: str = ""
    same: dict[str, Place] = field(default_factory=dict)
    renewals: dict[str, Node] = field(default_factory=dict)
    ports: dict[tuple[str, str, Micro | None], tuple[Port, ...]] = field(default_factory=dict)

    def add(
        self, node: Node, which: str, inputs: Iterable[Port], outputs: Iterable[Port], micro: Micro | None = None
    ) -> None:
        axis = self.samples.axes.get(node.name, "") if micro else ""
        self.steps.append(Step(len(self.steps), node, which, tuple(inputs), tuple(outputs), axis, micro or WHOLE_BATCH))

    def place(self, tensor: str, begin: Sequence[int]) -> Place:
        """Where a piece of a tensor's gradient lies that begins there."""
        of, first = self.same.get(tensor, (tensor, (0,) * len(begin)))
        return of, tuple(map(add, first, begin))

    def port(self, role: str, index: int, tensor: str, micro: Micro | None, piece: tuple[int, ...] = ()) -> Port:
        """The port of a tensor of the graph, or of its gradient; a parameter is read from where it was fetched to.

        piece   where in the gradient what it touches begins
        """
        begin: tuple[int, ...] = ()
        if role in ("x", "y"):
            region = tensor = self.source.get(tensor, tensor)
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


def training(graph: Graph, updates: Updates, chosen: frozenset[str], count: int = 1, shown: int = 0) -> Program:
    """The program of one training step in `count` microbatches.

    chosen   the fetch and accumulate nodes that the strategy asks for
    shown    so many of them are written out, two or more, the last but one standing for the others; 0 for all
    Raises ValueError where there is nothing to minimise, or the graph cannot be cut into microbatches.
    """
    if not graph.loss:
        raise ValueError(f"{graph.name} has no loss to minimise: name it with minimise(loss)")
    draft = _draft(graph, updates, chosen | cast(graph, updates), count, shown or count)
    if is_scaled(graph, updates):
        _scale(draft)
    constant = [n for n in graph.nodes.values() if n.name not in draft.samples.axes]
    tail = [n for n in constant if _follows(n, draft)] if count > 1 else []
    head = [n for n in constant if n not in tail]
    each = [n for n in graph.nodes.values() if n.name in draft.samples.axes]
    _forward(draft, head, None)
    gradients = _Gradients(draft)
    wanted = gradients.plan([*tail[::-1], *each[::-1], *head[::-1]])
    micros = draft.micros() if count > 1 else []
    for micro in micros:
        _forward(draft, each, micro)
        if micro is micros[-1]:
            _forward(draft, tail, None)
        if micro.number == 0:
            _check_tail(tail, wanted, draft)
            gradients.add(tail, wanted, None)
        gradients.add(each, wanted, micro)
    _renew_states(draft)
    gradients.add(head, wanted, None)
    _updates(draft, gradients.arriving, chosen)
    outputs = {graph.loss} | ({NORM} if beside.whole(graph, updates) else set())
    return Program(graph, tuple(draft.steps), flows(draft.steps, draft.specs, draft.homes, outputs))


def forward(graph: Graph, updates: Updates, chosen: frozenset[str]) -> Program:
    """The program of a forward pass to the graph's outputs, over parameters that lie where training keeps them."""
    needed = _needed(graph, graph.outputs)
    params = {i for n in needed for i in n.inputs if graph.tensors[i].param}
    asked = chosen | cast(graph, updates)
    draft = _draft(graph, updates, frozenset(c for c in asked if c.rpartition("/")[0] in params), 1, 1)
    _forward(draft, needed, None)
    return Program(graph, tuple(draft.steps), flows(draft.steps, draft.specs, draft.homes, set(graph.outputs)))


def _draft(graph: Graph, updates: Updates, chosen: frozenset[str], count: int, shown: int) -> _Draft:
    found = samples.trace(graph, count) if count > 1 else Samples({}, {})
    draft = _Draft(graph, updates, found, count, shown)
    draft.specs = {t.name: Spec(t.shape, t.dtype) for t in graph.tensors.values()}
    for param in graph.params:
        node = draft.renewals[param.name] = update(graph, updates, param)
        for result, region in enumerate(node.outputs):
            draft.homes[region] = Home(node, result)
            shape = node.alignment.shape(node.alignment.results[result])
            draft.specs[region] = Spec(shape, updates.kept(param.dtype))
        if fetch_name(param.name) in chosen:
            fetch = apart("fetch", param)
            draft.source[param.name] = param.name + FETCHED
            draft.specs[param.name + FETCHED] = Spec(param.shape, param.dtype)
            draft.add(fetch, "F", [Port("x", 0, param.name)], [Port("y", 0, param.name + FETCHED)])
    for state, node in state_updates(graph).items():
        draft.homes[state] = Home(node, 0)
    return draft


def _needed(graph: Graph, outputs: Iterable[str]) -> list[Node]:
    wanted = set(outputs)
    for node in reversed(graph.nodes.values()):
        if wanted & set(node.outputs):
            wanted.update(node.inputs)
    return [n for n in graph.nodes.values() if wanted & set(n.outputs)]


def _ports(draft: _Draft, role: str, node: Node, micro: Micro | None) -> tuple[Port, ...]:
    """Those of a node's operands ("x"), results ("y") or the gradients of these ("dy")."""
    key = role, node.name, micro
    if key not in draft.ports:
        tensors = {"x": node.inputs, "y": node.outputs, "dy": node.outputs[: node.op.flows]}[role]
        draft.ports[key] = tuple([draft.port(role, n, t, micro) for n, t in enumerate(tensors)])
    return draft.ports[key]


def _scale(draft: _Draft) -> None:
    """The gradient of the loss is its scale, which is carried from step to step.

    Raises ValueError where parameters are kept in another dtype than the loss.
    """
    loss, kept = draft.specs[draft.graph.loss].dtype, draft.updates.kept(draft.graph.dtype)
    if loss != kept:
        raise ValueError(
            f"the loss {draft.graph.loss!r} is of {loss}, and so is its scale: parameters that it moves cannot be kept "
            f"in {kept}"
        )
    node = beside.whole(draft.graph, draft.updates)[update_name(SCALE)]
    for result, region in enumerate(node.outputs):
        draft.homes[region] = Home(node, result)
        draft.specs[region] = draft.specs[draft.graph.loss]
    draft.slope = SCALE


def _forward(draft: _Draft, nodes: Iterable[Node], micro: Micro | None) -> None:
    for node in nodes:
        draft.add(node, "F", _ports(draft, "x", node, micro), _ports(draft, "y", node, micro), micro)


def _follows(node: Node, draft: _Draft) -> bool:
    """Whether a node without samples needs what others compute of samples."""
    made = {n: node for node in draft.graph.nodes.values() for n in node.outputs}
    before = [made[t] for t in node.inputs if t in made]
    return any(b.name in draft.samples.axes or _follows(b, draft) for b in before)


def _check_tail(tail: Sequence[Node], wanted: Collection[tuple[str, str]], draft: _Draft) -> None:
    """What follows the sums over samples must have gradients, where any are wanted, that need no values: these come
    after all microbatches."""
    passes = [(node, which) for node in tail for which in ("B", "W") if (node.name, which) in wanted]
    for node, which in passes:
        if any(n >= node.op.flows for n in recorded(node, draft.graph.tensors, which).reads):
            raise ValueError(
                f"{node.name} ({node.op.name}) needs what is computed over the whole batch to begin its gradients: "
                f"this model cannot be trained in {draft.count} microbatches"
            )


class _Gradients:
    """Gradient passes: which operands of which nodes want one is found once, for all microbatches.

    arriving   the tensors that have a gradient
    onto       what the gradient that a node gives of an operand, by number, is added to
    """

    def __init__(self, draft: _Draft) -> None:
        self.draft = draft
        self.arriving = {draft.graph.loss}
        self.onto: dict[tuple[str, int], Place] = {}
        self._handed = HandedOn(draft.graph.tensors)

    def plan(self, nodes: Sequence[Node]) -> dict[tuple[str, str], list[int]]:
        """(node, pass) -> the operands whose gradients it makes; `nodes` in the order of their gradients."""
        graph = self.draft.graph
        learned = {t.name for t in graph.params}
        for node in graph.nodes.values():
            if learned & set(node.inputs):
                learned.update(node.outputs[: node.op.flows])
        wanted: dict[tuple[str, str], list[int]] = {}
        for node in nodes:
            results = set(node.outputs[: node.op.flows])
            if not results & self.arriving & learned:
                continue
            for which, params in (("B", False), ("W", True)):
                found = [
                    i for i, t in enumerate(node.inputs)
                    if node.alignment.operands[i].param == params and t in learned and graph.tensors[t].floating
                ]  # fmt: skip
                if found:
                    wanted[node.name, which] = found
                    self.arriving.update(node.inputs[i] for i in found)
        self._hand_on(wanted)
        return wanted

    def _hand_on(self, wanted: dict[tuple[str, str], list[int]]) -> None:
        """A gradient that is another one, or a piece of it, is not made.

        Where nobody adds to it, whoever reads it reads that one; else the next who adds gives the sum of both.
        """
        draft, makers = self.draft, dict[str, list[tuple[str, int]]]()
        for (name, _), found in wanted.items():
            for i in found:
                makers.setdefault(draft.graph.nodes[name].inputs[i], []).append((name, i))
        for x, made in makers.items():
            for maker, after in zip(made, [*made[1:], None]):
                source = self._source(x, *maker)
                if source is None:
                    continue
                if len(made) == 1:
                    draft.same[x] = draft.place(*source)
                elif after is not None and self._adds(x, maker[0], *after):
                    self.onto[after] = source
                else:
                    continue
                name, i = maker
                wanted[name, "B"].remove(i)
                if not wanted[name, "B"]:
                    del wanted[name, "B"]

    def _source(self, x: str, name: str, operand: int) -> Place | None:
        """What the gradient that a node gives of its operand x is, where it is handed on; with all samples of x."""
        graph, dims, specs = self.draft.graph, self.draft.samples.dims, self.draft.specs
        node = graph.nodes[name]
        if graph.tensors[x].param or (name, operand) in self.onto:
            return None
        handed = self._handed.of(node).get(operand)
        if handed is None:
            return None
        y, cut = node.outputs[handed.result], dims.get(x)
        is_whole = cut == dims.get(y) and (cut is None or specs[x].shape[cut] == specs[y].shape[cut])
        return (y, handed.begin) if is_whole and specs[x].dtype == specs[y].dtype else None

    def _adds(self, x: str, before: str, name: str, operand: int) -> bool:
        """Whether the parts of a node give x's gradient in pieces, each of which is added to what `before` gives."""
        node, samples = self.draft.graph.nodes[name], self.draft.samples
        together = (name in samples.axes) == (before in samples.axes) == (x in samples.dims)
        return together and node.op.apart(operand, node.alignment) is not None

    def add(self, nodes: Sequence[Node], wanted: dict[tuple[str, str], list[int]], micro: Micro | None) -> None:
        """The gradient passes of nodes in reverse."""
        draft = self.draft
        for node in reversed(nodes):
            for which in ("B", "W"):
                if (node.name, which) not in wanted:
                    continue
                found = wanted[node.name, which]
                inputs = [*_ports(draft, "dy", node, micro), *_ports(draft, "x", node, micro)]
                if "y" in node.op.asks(which):
                    inputs += _ports(draft, "y", node, micro)
                added = [(i, *self.onto[node.name, i]) for i in found if (node.name, i) in self.onto]
                inputs += [draft.port("onto", i, tensor, micro, piece) for i, tensor, piece in added]
                outputs = [draft.port("dx", i, node.inputs[i], micro) for i in found]
                draft.add(node, which, inputs, outputs, micro)


def _renew_states(draft: _Draft) -> None:
    for state, node in draft.graph.updates.items():
        if draft.count > 1 and any(t in draft.samples.dims for t in node.inputs):
            raise ValueError(f"{state!r} is renewed from single samples: it cannot be trained in microbatches")
        draft.add(node, "F", _ports(draft, "x", node, None), [Port("y", 0, state)])


def _updates(draft: _Draft, gradients: set[str], chosen: frozenset[str]) -> None:
    """Accumulators, clipping and updates of every parameter."""
    regions = {}
    for param in draft.graph.params:
        if param.name not in gradients:
            raise ValueError(f"parameter {param.name!r} has no influence on the loss {draft.graph.loss!r}")
        regions[param.name] = param.name + GRADIENT
        draft.specs[param.name + GRADIENT] = draft.specs[param.name]
        if accumulate_name(param.name) in chosen:
            node = apart("accumulate", param)
            draft.specs[param.name + ACCUMULATED] = draft.specs[param.name]
            draft.add(node, "F", [Port("x", 0, regions[param.name])], [Port("y", 0, param.name + ACCUMULATED)])
            regions[param.name] = param.name + ACCUMULATED
    together = beside.whole(draft.graph, draft.updates)
    if together:
        regions = _clip(draft, regions, together)
    for param in draft.graph.params:
        node = draft.renewals[param.name]
        inputs = [regions[param.name] if n == 1 else t for n, t in enumerate(node.inputs)]
        kept = draft.specs[param.name].dtype
        draft.specs.update({filled(name): Spec((), kept) for name in draft.updates.of(param.name).scalars})
        ports = [Port("x", i, region) for i, region in enumerate(inputs)]
        draft.add(node, "F", ports, [Port("y", j, t) for j, t in enumerate(node.outputs)])


def _clip(draft: _Draft, regions: dict[str, str], together: Mapping[str, Node]) -> dict[str, str]:
    """Clip all gradients and take the loss's scale out of them; gives where each parameter's is then."""
    kept = draft.updates.kept(draft.graph.dtype)
    draft.specs.update({name: Spec((), kept) for name in (SQUARES, FACTOR, NORM, NUMBER)})
    # As their gradients come, the last layer's first: they are added up one after the other.
    for param, region in reversed(regions.items()):
        draft.add(together[f"{param}/square_sum"], "F", [Port("x", 0, region)], [Port("y", 0, SQUARES)])
    for node in (together[name] for name in (FACTOR, update_name(SCALE)) if name in together):
        ports = [Port("x", i, region) for i, region in enumerate(node.inputs)]
        draft.add(node, "F", ports, [Port("y", j, region) for j, region in enumerate(node.outputs)])
    for param, region in regions.items():
        draft.specs[param + CLIPPED] = draft.specs[param]
        ports = [Port("x", 0, region), Port("x", 1, FACTOR)]
        draft.add(together[f"{param}/clip"], "F", ports, [Port("y", 0, param + CLIPPED)])
    return {param: param + CLIPPED for param in regions}

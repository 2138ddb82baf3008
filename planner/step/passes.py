"""The passes of a program: forward, gradients in reverse, clipping, accumulators and updates, microbatch by microbatch.

Every pass is of an operator with a Config: there may be a `fetch` between a parameter's home and its use, and an
`accumulate` between its gradient and its update; updates of parameters and states are nodes too. It does not know
strategies, processors or costs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from castile.planner.bodies.vocabulary import Spec
from castile.planner.families.updates import Updates, filled
from castile.planner.graph import Graph, Node
from castile.planner.step import beside, samples
from castile.planner.step.beside import (
    FACTOR,
    NORM,
    NUMBER,
    SCALE,
    SQUARES,
    apart,
    cast,
    is_scaled,
    state_updates,
    update,
)
from castile.planner.step.drafting import NONE, Draft
from castile.planner.step.dropped import Dropped
from castile.planner.step.fetching import in_time
from castile.planner.step.flows import flows
from castile.planner.step.gradients import Gradients
from castile.planner.step.handed import recorded
from castile.planner.step.program import (
    ACCUMULATED,
    CLIPPED,
    FETCHED,
    GRADIENT,
    Home,
    Micro,
    Port,
    Program,
    accumulate_name,
    fetch_name,
    update_name,
)
from castile.planner.step.samples import Samples


def training(
    graph: Graph,
    updates: Updates,
    chosen: frozenset[str],
    count: int = 1,
    shown: int = 0,
    recompute: frozenset[str] = NONE,
) -> Program:
    """The program of one training step in `count` microbatches.

    chosen      the fetch and accumulate nodes for which the strategy has a Config; gradients with an accumulate node
                are summed microbatch by microbatch
    shown       how many microbatches are written out, two or more: the last but one stands for the others; 0 for all
    recompute   the nodes whose results are recomputed for gradient passes; with microbatches only nodes all of whose
                results are per sample. A parameter whose fetch is among them is fetched by each microbatch for its
                forward passes, and again for its gradients
    Raises ValueError where the graph has no loss, or cannot be cut into microbatches.
    """
    if not graph.loss:
        raise ValueError(f"{graph.name} has no loss to minimise: name it with minimise(loss)")
    asked = chosen | cast(graph, updates) | (recompute - graph.nodes.keys())
    draft = _draft(graph, updates, asked, count, shown or count, recompute)
    if is_scaled(graph, updates):
        _scale(draft)
    constant = [n for n in graph.nodes.values() if n.name not in draft.samples.axes]
    tail = [n for n in constant if _follows(n, draft)] if count > 1 else []
    head = [n for n in constant if n not in tail]
    each = [n for n in graph.nodes.values() if n.name in draft.samples.axes]
    _forward(draft, head, None)
    gradients = Gradients(draft)
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
    _updates(draft, gradients.arriving)
    outputs = {graph.loss} | ({NORM} if beside.whole(graph, updates) else set())
    return Program(graph, tuple(draft.steps), flows(draft.steps, draft.specs, draft.homes, outputs))


def forward(graph: Graph, updates: Updates, chosen: frozenset[str], dropped: frozenset[str] = NONE) -> Program:
    """The program of a forward pass to the graph's outputs, over parameters with the layout of training.

    dropped   what training recomputes: of these, fetches of parameters are made when they are used here too
    """
    needed = _needed(graph, graph.outputs)
    params = {i for n in needed for i in n.inputs if graph.tensors[i].param}
    fetches = dropped - graph.nodes.keys()
    asked = frozenset(c for c in chosen | cast(graph, updates) | fetches if c.rpartition("/")[0] in params)
    draft = _draft(graph, updates, asked, recompute=fetches)
    _forward(draft, needed, None)
    return Program(graph, tuple(draft.steps), flows(draft.steps, draft.specs, draft.homes, set(graph.outputs)))


def _draft(
    graph: Graph, updates: Updates, chosen: frozenset[str], count: int = 1, shown: int = 1,
    recompute: frozenset[str] = NONE,
) -> Draft:  # fmt: skip
    found = samples.trace(graph, count) if count > 1 else Samples({}, {})
    if count > 1:
        each = [n for n in recompute & found.axes.keys() if found.dims.keys() >= {*graph.nodes[n].outputs}]
        recompute = recompute - graph.nodes.keys() | {*each}
    dropped = Dropped(graph, recompute)
    summed = frozenset([p.name for p in graph.params if accumulate_name(p.name) in chosen])
    draft = Draft(graph, updates, found, dropped, summed, count, shown)
    draft.specs = {t.name: Spec(t.shape, t.dtype) for t in graph.tensors.values()}
    for param in graph.params:
        node = draft.renewals[param.name] = update(graph, updates, param)
        for result, region in enumerate(node.outputs):
            draft.homes[region] = Home(node, result)
            shape = node.alignment.shape(node.alignment.results[result])
            draft.specs[region] = Spec(shape, updates.kept(param.dtype))
        if fetch_name(param.name) in chosen:
            draft.source[param.name] = param.name + FETCHED
            draft.specs[param.name + FETCHED] = Spec(param.shape, param.dtype)
            if param.name not in dropped.fetched:
                fetch = apart("fetch", param)
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


def _scale(draft: Draft) -> None:
    """Make the loss scale, which is carried from step to step, the gradient of the loss.

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


def _forward(draft: Draft, nodes: Sequence[Node], micro: Micro | None) -> None:
    fetched = in_time([[t for t in n.inputs if t in draft.dropped.fetched] for n in nodes], draft.fetched_sizes)
    for node, params in zip(nodes, fetched, strict=True):
        draft.fetch(params, micro)
        draft.add(node, "F", draft.ports("x", node, micro), draft.ports("y", node, micro), micro)


def _follows(node: Node, draft: Draft) -> bool:
    """Whether a node without a sample axis reads, also through other nodes, results computed from samples."""
    producers = draft.graph.producers
    before = [producers[t] for t in node.inputs if t in producers]
    return any(b.name in draft.samples.axes or _follows(b, draft) for b in before)


def _check_tail(tail: Sequence[Node], wanted: Collection[tuple[str, str]], draft: Draft) -> None:
    """Raises ValueError where gradients of nodes after the sums over samples read values, which are there only after
    all microbatches.
    """
    passes = [(node, which) for node in tail for which in ("B", "W") if (node.name, which) in wanted]
    for node, which in passes:
        if any(n >= node.op.flows for n in recorded(node, draft.graph.tensors, which).reads):
            raise ValueError(
                f"{node.name} ({node.op.name}) needs what is computed over the whole batch to begin its gradients: "
                f"this model cannot be trained in {draft.count} microbatches"
            )


def _renew_states(draft: Draft) -> None:
    for state, node in draft.graph.updates.items():
        if draft.count > 1 and any(t in draft.samples.dims for t in node.inputs):
            raise ValueError(f"{state!r} is renewed from single samples: it cannot be trained in microbatches")
        draft.add(node, "F", draft.ports("x", node, None), [Port("y", 0, state)])


def _updates(draft: Draft, gradients: set[str]) -> None:
    """Add clipping and the update of every parameter that is trained."""
    regions = {}
    for param in draft.graph.trained:
        if param.name not in gradients:
            raise ValueError(f"parameter {param.name!r} has no influence on the loss {draft.graph.loss!r}")
        regions[param.name] = param.name + (ACCUMULATED if param.name in draft.summed else GRADIENT)
        draft.specs[param.name + GRADIENT] = draft.specs[param.name]
    together = beside.whole(draft.graph, draft.updates)
    if together:
        regions = _clip(draft, regions, together)
    for param in draft.graph.trained:
        node = draft.renewals[param.name]
        inputs = [regions[param.name] if n == 1 else t for n, t in enumerate(node.inputs)]
        kept = draft.specs[param.name].dtype
        draft.specs.update({filled(name): Spec((), kept) for name in draft.updates.of(param.name).scalars})
        ports = [Port("x", i, region) for i, region in enumerate(inputs)]
        draft.add(node, "F", ports, [Port("y", j, t) for j, t in enumerate(node.outputs)])


def _clip(draft: Draft, regions: dict[str, str], together: Mapping[str, Node]) -> dict[str, str]:
    """Add the clipping of all gradients, which also unscales them; returns the region of each parameter's gradient."""
    kept = draft.updates.kept(draft.graph.dtype)
    draft.specs.update({name: Spec((), kept) for name in (SQUARES, FACTOR, NORM, NUMBER)})
    # In the order in which gradients get ready, the last layer's first: squares are summed one after the other.
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

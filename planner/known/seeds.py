"""Seeds: the plans that everyone knows. Searches start from them, and must not end behind them.

It does not know what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import gcd, prod

import msgspec
import numpy as np

from castile.planner.axes import Alignment
from castile.planner.choices import shares
from castile.planner.choices.pins import Pins
from castile.planner.cost import CostModel
from castile.planner.graph import Graph, Node
from castile.planner.known.megatron import SAMPLES, TensorCuts
from castile.planner.known.pieces import in_pieces
from castile.planner.known.pipelines import divisors, pipelined
from castile.planner.lower import Lowering
from castile.planner.step.program import update_name
from castile.planner.strategy import Config, Strategy
from castile.runtime.strict import suggestion

# Of known plans on fewer processors there are so many, each on half as many as the one before.
MOST_HALVES = 3
# Parts are all but equal where the longest is longer than their mean by at most this share, as those of a vocabulary.
UNEVEN = 0.01
# What leaves less than this share of memory free beside parameters, gradients and states may not fit.
ROOMY = 0.5
# Keys of earlier positions are passed on one by one: where that makes more messages a layer than this, to lower a plan
# takes gigabytes, so positions are not cut across groups of processors then.
MOST_PASSED = 1024

# Where plans have more parts pipelines of so many stages are known, and by their names only: of each as many
# microbatches are written out as it takes until they run as those before, 15 seconds for GPT-3 on 1,024 processors.
MOST_PIPED, MOST_STAGES = 100_000, 16
# How the names of pipelines begin.
PIPELINE = "pipeline_"

Configs = dict[str, Config]


def seeds(
    lowering: Lowering, names: Sequence[str] | None = None, cost: CostModel | None = None, pins: Pins | None = None
) -> dict[str, Strategy]:
    """The known plans of a graph on a machine by name, data_parallel first; of equal ones the first.

    names   only those; None for all, of which pipelines are none where there are too many parts to simulate several
    cost    prices by which unequal processors get their shares; the machine's figures by default
    pins    what is changed of them
    Raises ValueError for a name that no known plan has.
    """
    makers = _makers(lowering, cost)
    for name in names or ():
        if name not in makers:
            hint = suggestion(name, list(makers))
            raise ValueError(f"no known plan {name!r}{hint}; there are {', '.join(makers)}")
    if names is None:
        names = [name for name in makers if not (has_many_parts(lowering) and name.startswith(PIPELINE))]
    distinct: dict[str, Strategy] = {}
    # What a plan was made for is a hash of the whole graph: once for all of them.
    stamp = stamped(lowering, {}, "")
    for name, make in makers.items():
        if name not in names:
            continue
        configs = make() if pins is None else pins.apply(make())
        if all(configs != known.configs for known in distinct.values()):
            distinct[name] = msgspec.structs.replace(stamp, configs=configs, search=name)
    return distinct


def known_names(lowering: Lowering) -> tuple[str, ...]:
    """The names of all known plans of the graph on the machine, also of those that are the same as another."""
    return tuple(_makers(lowering, None))


def has_many_parts(lowering: Lowering) -> bool:
    """Whether plans have too many parts to simulate several pipelines."""
    return len(lowering.piece.nodes) * lowering.machine.num_procs > MOST_PIPED


def seed(name: str, lowering: Lowering, cost: CostModel | None = None) -> Configs:
    """The known plan of that name, also where it is the same as another."""
    return _makers(lowering, cost)[name]()


def _makers(lowering: Lowering, cost: CostModel | None) -> dict[str, Callable[[], Configs]]:
    """How each known plan is made: those of everyone, then those that do with fewer processors or narrower cuts."""
    graph, num_procs = lowering.piece, lowering.machine.num_procs
    cuts = TensorCuts(graph)
    # What is cut within a layer talks at every layer, so it stays within a node: all levels but the farthest.
    near = lowering.machine.levels[-2:][0].group if lowering.machine.levels else 1
    made: dict[str, Callable[[], Configs]] = {
        "data_parallel": partial(data_parallel, graph, num_procs),
        "balanced": partial(balanced, lowering, cost),
        "one_processor": partial(_on_fastest, partial(one_processor, graph), lowering, cost),
        "one_weird_trick": partial(one_weird_trick, graph, num_procs),
        "fsdp": partial(fsdp, lowering),
        "megatron": partial(megatron, cuts, num_procs, near),
    }
    if graph.batch < num_procs:
        made["context_parallel"] = make = partial(context_parallel, cuts, num_procs)
        made["context_parallel_zero"] = partial(_in_pieces, lowering, make)
    for fewer in _halves(num_procs):
        made[f"data_parallel_{fewer}"] = partial(_on_fastest, partial(data_parallel, graph, fewer), lowering, cost)
    for fewer in _halves(near):
        made[f"megatron_{fewer}"] = partial(megatron, cuts, num_procs, fewer)
    for name, apart in _with_experts(cuts, num_procs, near).items():
        made |= {name: apart, f"{name}_zero": partial(_in_pieces, lowering, apart)}
    return made | _for_large(lowering, cuts, near) | _pipelines(lowering, cuts, near, cost)


def _pipelines(
    lowering: Lowering, cuts: TensorCuts, near: int, cost: CostModel | None
) -> dict[str, Callable[[], Configs]]:
    """Pipelines of at most as many stages as there are microbatches to fill them, with updates in pieces too where
    parameters leave little room.
    """
    num_procs = lowering.machine.num_procs
    if lowering.microbatches == 1:
        return {}
    room = min(p.memory_bytes - p.reserved_bytes for p in lowering.machine.processors)
    _, all_bytes = _param_bytes(lowering)
    made: dict[str, Callable[[], Configs]] = {}
    most = min(lowering.microbatches, MOST_STAGES if has_many_parts(lowering) else num_procs)
    for num_stages in divisors(num_procs)[1:]:
        if num_stages > most:
            break
        size = num_procs // num_stages
        for suffix, width, inner in _within(lowering, cuts, size, near):
            name = f"{PIPELINE}{num_stages}{suffix}"
            made[name] = make = partial(_pipelined, lowering, num_stages, inner, cost)
            if size > width and all_bytes / num_stages / width > ROOMY * room:
                made[f"{name}_zero"] = partial(_in_pieces, lowering, make)
    return made


def _within(
    lowering: Lowering, cuts: TensorCuts, size: int, near: int
) -> Iterator[tuple[str, int, Callable[[], Configs]]]:
    """What each of a stage's processors may do: samples, matrices cut in pairs as wide as `near` allows, or experts; by
    the end of a name, with the width.
    """
    yield "", 1, partial(data_parallel, lowering.piece, size)
    if (width := min(size, near)) > 1:
        yield f"_megatron_{width}", width, partial(megatron, cuts, size, width)
    for name, apart in _with_experts(cuts, size, near).items():
        yield f"_{name}", 1, apart


def _with_experts(cuts: TensorCuts, num_procs: int, near: int) -> dict[str, Callable[[], Configs]]:
    """Plans that lay experts apart, across all processors or those that are near; none where there are none."""
    widths = [width for width in dict.fromkeys((num_procs, min(num_procs, near))) if _apart(cuts, num_procs, width)]
    names = ["expert_parallel" + f"_{width}" * (width < num_procs) for width in widths]
    return {n: partial(expert_parallel, cuts, num_procs, width) for n, width in zip(names, widths, strict=True)}


def _pipelined(lowering: Lowering, num_stages: int, inner: Callable[[], Configs], cost: CostModel | None) -> Configs:
    return pipelined(lowering, num_stages, inner(), cost)


def _in_pieces(lowering: Lowering, make: Callable[[], Configs]) -> Configs:
    return in_pieces(lowering, make())


def _for_large(lowering: Lowering, cuts: TensorCuts, near: int) -> dict[str, Callable[[], Configs]]:
    """Known plans for models of which little else fits: cut wider than `near`, and with updates in pieces.

    Both send more. Wider is offered where cutting half as wide leaves too little room, and only where heads, features
    and processors all divide; pieces where the cut does, unless what is gathered for a step has no room either.
    """
    num_procs = lowering.machine.num_procs
    room = min(p.memory_bytes - p.reserved_bytes for p in lowering.machine.processors)
    once, all_bytes = _param_bytes(lowering)
    made: dict[str, Callable[[], Configs]] = {}
    for width in [near, *_halves(near), *_doubles(near, num_procs)]:
        held, gathered = all_bytes / width, once / width
        if width > near and (2 * held <= ROOMY * room or not _cuts_evenly(cuts, near, width)):
            break
        name = "megatron" if width == near else f"megatron_{width}"
        if width > near and held - gathered <= room:
            made[name] = partial(megatron, cuts, num_procs, width)
        if held > ROOMY * room and gathered <= room:
            made[f"{name}_zero"] = partial(megatron_zero, lowering, cuts, width)
    return made


def _param_bytes(lowering: Lowering) -> tuple[int, int]:
    """Of all parameters once as they are used, and as they are kept with their gradients and what updates keep."""
    once = several = 0
    for param in lowering.graph.params:
        operands = lowering.names.optional[update_name(param.name)].alignment.operands
        size, kept = prod(param.shape), lowering.updates.kept(param.dtype)
        once += size * np.dtype(param.dtype).itemsize
        several += size * np.dtype(kept).itemsize * sum(o.dims == operands[0].dims for o in operands)
    return once, several


def _cuts_evenly(cuts: TensorCuts, near: int, width: int) -> bool:
    """Whether what is cut `near` ways is cut into parts `width` ways too that are equal, or all but."""
    nodes, found = cuts.graph.nodes, cuts.of(near)
    extents = (nodes[name].alignment.extents[axis] for name, axis in found.items())
    return cuts.of(width) == found and all(-(-n // width) * width <= n * (1 + UNEVEN) for n in extents)


def _on_fastest(make: Callable[[], Configs], lowering: Lowering, cost: CostModel | None) -> Configs:
    """What is made, on the fastest processors instead of the first; of equal ones these are the first."""
    configs = make()
    speeds = shares.speeds(lowering, cost or CostModel(lowering.machine))
    different = {*configs.values()}
    count = 1 + max(max(config.procs) for config in different)
    fastest = sorted(sorted(range(len(speeds)), key=lambda p: -speeds[p])[:count])
    moved = {c: Config(c.split, c.replicas, tuple([fastest[p] for p in c.procs])) for c in different}
    return {name: moved[config] for name, config in configs.items()}


def _halves(number: int) -> list[int]:
    """Half of it, half of that and so on, a few times, down to 2."""
    return [number >> shift for shift in range(1, MOST_HALVES + 1) if number >> shift > 1]


def _doubles(number: int, most: int) -> list[int]:
    """Twice it, twice that and so on, below `most`, as long as they divide it."""
    found = [number << shift for shift in range(1, most.bit_length()) if number << shift < most]
    return [n for n in found if most % n == 0]


def stamped(lowering: Lowering, configs: dict[str, Config], search: str, seed: int = 0) -> Strategy:
    """The plan of these Configs, which says what it was made for and by which search."""
    graph, machine = lowering.graph, lowering.machine
    return msgspec.structs.replace(
        lowering.plan(configs),
        model=graph.name,
        graph=graph.fingerprint,
        machine=machine.fingerprint,
        num_procs=machine.num_procs,
        search=search,
        seed=seed,
    )


def one_processor(graph: Graph) -> Configs:
    """Everything on processor 0."""
    return {name: Config() for name in graph.nodes}


def data_parallel(graph: Graph, num_procs: int) -> Configs:
    """Every node cut along the samples, as often as that goes; nodes without samples are done by all alike."""
    return {name: _along(node.alignment, SAMPLES, num_procs) for name, node in graph.nodes.items()}


def balanced(lowering: Lowering, cost: CostModel | None = None) -> Configs:
    """Data parallelism where fast processors do more parts than slow ones, as many as their speeds say.

    Jia, Zaharia, Aiken (MLSys 2019) name a processor twice in one Config too. Nodes without samples to cut are done by
    all alike; on equal processors it is data parallelism.
    """
    num_procs = lowering.machine.num_procs
    configs = data_parallel(lowering.piece, num_procs)
    shared = shares.spread(shares.speeds(lowering, cost or CostModel(lowering.machine)))
    for name, node in lowering.piece.nodes.items():
        a = node.alignment
        room = 1 if SAMPLES in a.frozen else a.extents.get(SAMPLES, 1)
        if most := max((num_parts for num_parts in shared if 1 < num_parts <= room), default=0):
            configs[name] = Config({SAMPLES: most}, 1, shared[most])
    return configs


def one_weird_trick(graph: Graph, num_procs: int) -> Configs:
    """Nodes with more parameters than results are cut along their output channels, the others along the samples.

    Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014.
    """
    return {name: _along(node.alignment, _weird_axis(graph, node), num_procs) for name, node in graph.nodes.items()}


def fsdp(lowering: Lowering) -> Configs:
    """Data parallelism with every parameter at home in pieces on all who use it, gathered where it is used.

    Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020;
    Zhao et al., "PyTorch FSDP", VLDB 2023. What was gathered stays until its last use in the step.
    """
    return in_pieces(lowering, data_parallel(lowering.piece, lowering.machine.num_procs))


def megatron(cuts: TensorCuts, num_procs: int, width: int) -> Configs:
    """Pairs of matrices cut so that nothing is sent between the two, `width` ways; the samples as often as that leaves.

    Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019. What
    lies between the pairs is cut along samples or positions on all processors (Korthikanti et al., "Reducing Activation
    Recomputation in Large Transformer Models", 2022). Processors of one cut lie side by side. Data parallelism where
    the processors are not a multiple of the width, or no matrices form a pair.
    """
    found = cuts.of(width) if width > 1 and num_procs % width == 0 else {}
    if not found:
        return data_parallel(cuts.graph, num_procs)
    return _crossed_by(cuts, found, num_procs, width) | _apart(cuts, num_procs, num_procs)


def context_parallel(cuts: TensorCuts, num_procs: int) -> Configs:
    """Every node cut along the samples, and along positions where there are more processors than samples.

    Li et al., "Sequence Parallelism: Long Sequence Training from System Perspective", ACL 2023. Keys and values of
    earlier positions are gathered where a causal attention asks for them.
    """
    return _crossed_by(cuts, {}, num_procs, 1)


def expert_parallel(cuts: TensorCuts, num_procs: int, width: int) -> Configs:
    """Experts on processors of their own, on as many of `width` neighbours as divide them, all else by its context.

    Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding", ICLR 2021.
    """
    return context_parallel(cuts, num_procs) | _apart(cuts, num_procs, width)


def _crossed_by(cuts: TensorCuts, axes: Mapping[str, str], num_procs: int, width: int) -> Configs:
    """Each node cut along its axis of these by name, if it has one, within groups of processors."""
    nodes = cuts.graph.nodes
    return {name: _crossed(node.alignment, axes.get(name, ""), num_procs, width) for name, node in nodes.items()}


def _apart(cuts: TensorCuts, num_procs: int, width: int) -> Configs:
    """The nodes that have experts, cut by these across so many of `width` neighbours as divide them."""
    found = {}
    for name, axis in cuts.experts.items():
        a = cuts.graph.nodes[name].alignment
        if (degree := gcd(a.extents[axis], width, num_procs)) > 1:
            found[name] = _crossed(a, axis, num_procs, degree)
    return found


def megatron_zero(lowering: Lowering, cuts: TensorCuts, width: int) -> Configs:
    """Matrices cut in pairs `width` ways, and each update in pieces over all who hold the same.

    Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020,
    section 8, together with Megatron-LM.
    """
    return in_pieces(lowering, megatron(cuts, lowering.machine.num_procs, width))


def _weird_axis(graph: Graph, node: Node) -> str:
    params = [t for t in map(graph.tensors.__getitem__, node.inputs) if t.param]
    if not params:
        return SAMPLES
    of_params = {axis for o in node.alignment.operands if o.param for axis in o.axes}
    channels = [a for a in node.alignment.results[0].axes if a in of_params and a not in node.alignment.frozen]
    is_heavy = sum(prod(t.shape) for t in params) > prod(graph.tensors[node.outputs[0]].shape)
    return channels[-1] if channels and is_heavy else SAMPLES


def _along(a: Alignment, axis: str, num_procs: int) -> Config:
    degree = 1 if axis in a.frozen else min(num_procs, a.extents.get(axis, 1))
    return _cut(axis, degree, 1) if degree > 1 else _cut("", 1, num_procs)


@lru_cache(maxsize=1024)
def _cut(axis: str, degree: int, replicas: int) -> Config:
    """An axis cut so often, on the first processors: one for all nodes, as plans are compared by their Configs."""
    return Config({axis: degree} if axis else {}, replicas, tuple(range(degree * replicas)))


@lru_cache(maxsize=4096)
def _crossed(a: Alignment, axis: str, num_procs: int, width: int) -> Config:
    """Samples cut across groups of `width` processors, and the axis within them; where samples are fewer than groups,
    another axis of the results (positions) across those that are left.

    "": samples over all processors, else such another axis within groups too, else all of a group alike.
    """
    ways = num_procs // width
    samples = 1 if SAMPLES in a.frozen else a.extents.get(SAMPLES, 1)
    if not axis and samples >= num_procs:
        return _along(a, SAMPLES, num_procs)
    groups = min(ways, samples)
    others = [x for result in a.results for x in result.axes if x not in (SAMPLES, axis)]
    params = [o.axes for o in a.operands if o.param]
    of_matrices = {x for axes in params if not {*axes} <= {SAMPLES, axis, *others} for x in axes}
    within, left = 1 if axis else width, ways // groups if SAMPLES in a.axes else 1
    if num_procs * left > MOST_PASSED:
        left = 1
    # What a parameter has for each place may be cut as places are, if nothing else can be.
    free = sorted((x for x in others if x not in of_matrices), key=lambda x: any(x in axes for axes in params))
    wished = [(x, left * within) for x in free] + [(x, within) for x in others]
    second, degree = next(((x, n) for x, n in wished if n > 1 and _is_free(a, x, n)), ("", 1))
    # Without samples to cut, all groups do the same.
    copies = ways if groups == 1 and degree <= within else 1
    # From the farthest processors to neighbours; what cuts nothing are copies.
    rows = [("", copies), (SAMPLES if groups > 1 else "", groups), (second, degree)]
    rows += [(axis, width)] if axis or not second else []
    inner = sorted(range(len(rows)), key=lambda n: a.axes.index(rows[n][0]) if rows[n][0] else len(a.axes))
    procs = np.arange(prod(n for _, n in rows)).reshape([n for _, n in rows]).transpose(inner)
    split = {name: rows[n][1] for n in inner if (name := rows[n][0])}
    return Config(split, procs.size // prod(split.values()), tuple(procs.reshape(-1).tolist()))


def _is_free(a: Alignment, axis: str, degree: int) -> bool:
    return axis not in a.frozen and a.extents[axis] >= degree

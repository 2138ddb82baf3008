"""Seeds: the known plans by name. Searches start from them, and never end with a worse plan.

It does not know what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from math import prod

import msgspec

from castile.planner.bodies.vocabulary import itemsize
from castile.planner.choices import shares
from castile.planner.choices.pins import Pins, pinned
from castile.planner.cost import CostModel
from castile.planner.known.large import VAST, has_many_parts
from castile.planner.known.megatron import TensorCuts
from castile.planner.known.pieces import in_pieces
from castile.planner.known.pipelines import FEW, Pipelines, divisors, is_shared, shared, stage_counts
from castile.planner.known.plans import (
    Configs,
    balanced,
    context_parallel,
    data_parallel,
    expert_parallel,
    fsdp,
    head_widths,
    megatron,
    one_processor,
    one_weird_trick,
    ulysses,
    with_experts_cut,
)
from castile.planner.lower import Lowering
from castile.planner.step.fetching import AHEAD
from castile.planner.step.program import fetch_name, update_name
from castile.planner.strategy import Config, Strategy
from castile.runtime.machine import Machine
from castile.runtime.strict import suggestion

# How many known plans use fewer processors, each half as many as the one before.
MOST_HALVES = 3
# Parts count as equal if the longest exceeds their mean by at most this share, as those of a vocabulary do.
UNEVEN = 0.01
# Where parameters, gradients and states take more than ROOMY of the memory, activations may not fit beside them. In a
# pipeline more memory is needed, as the first stages keep activations of as many microbatches as there are stages.
ROOMY, ROOMY_STAGE = 0.5, 0.25

# The most stages where plans have many parts. These pipelines are made only when named: simulating one until it becomes
# periodic takes seconds (GPT-3 on 1,024 processors).
MOST_STAGES = 64
# The beginning of the names of pipelines.
PIPELINE = "pipeline_"


def seeds(
    lowering: Lowering, names: Sequence[str] | None = None, cost: CostModel | None = None, pins: Pins | None = None
) -> dict[str, Strategy]:
    """The known plans of a graph on a machine by name, data_parallel first; of equal plans only the first.

    names   only these; None for all, without pipelines where plans have too many parts to simulate several
    cost    decides the shares of unequal processors; by default from the machine's figures
    pins    each plan is changed to meet them. If they leave only processors that form a machine of their own, plans are
            made for that machine
    Raises ValueError for an unknown name.
    """
    own = _makers_within(lowering, cost, pins)
    makers = own if pins is None else _makers(lowering, cost) | own
    for name in names or ():
        if name not in makers:
            hint = suggestion(name, list(makers))
            raise ValueError(f"no known plan {name!r}{hint}; there are {', '.join(makers)}")
    if names is None:
        names = [name for name in own if not (has_many_parts(lowering) and is_pipeline(name))]
    distinct: dict[str, Strategy] = {}
    # stamped once for all plans, as the fingerprint is a hash of the whole graph
    stamp = stamped(lowering, {}, "")
    for name, make in makers.items():
        if name not in names:
            continue
        configs = pinned(make(), pins)
        if all(configs != known.configs for known in distinct.values()):
            distinct[name] = msgspec.structs.replace(stamp, configs=configs, search=name)
    return distinct


def known_names(lowering: Lowering, pins: Pins | None = None) -> tuple[str, ...]:
    """The names of all known plans of the graph on the machine, also of plans that equal another."""
    return tuple(_makers_within(lowering, None, pins))


def is_pipeline(name: str) -> bool:
    """Whether a known plan of that name is a pipeline."""
    return name.startswith(PIPELINE)


def is_in_pieces(name: str) -> bool:
    """Whether a known plan of that name is no pipeline and has its updates in pieces."""
    return not is_pipeline(name) and (name == "fsdp" or name.endswith("_zero"))


def microbatch_counts(lowering: Lowering) -> tuple[int, ...]:
    """The numbers of microbatches to try, ascending; where plans have many parts also those with which the groups of a
    pipeline's stage share samples.
    """
    return tuple(sorted({*divisors(lowering.graph.batch), *(_shared(lowering) if has_many_parts(lowering) else ())}))


def _shared(lowering: Lowering) -> tuple[int, ...]:
    return shared(lowering.graph.batch, lowering.machine.num_procs, _near(lowering.machine), MOST_STAGES)


def seed(name: str, lowering: Lowering, cost: CostModel | None = None) -> Configs:
    """The known plan of a name, also where it equals another."""
    return _makers(lowering, cost)[name]()


def _makers_within(lowering: Lowering, cost: CostModel | None, pins: Pins | None) -> dict[str, Callable[[], Configs]]:
    """A function that makes each known plan: for the processors that pins leave if these form a machine, else for all.
    """
    machine = lowering.machine
    procs = range(machine.num_procs) if pins is None else pins.procs
    part = machine.part(procs) if len(procs) < machine.num_procs else None
    if part is None:
        return _makers(lowering, cost, procs)
    made = _makers(lowering.remade(machine=part), cost and cost.on(part))
    return {name: partial(_made_on, procs, make) for name, make in made.items()}


def _made_on(procs: Sequence[int], make: Callable[[], Configs]) -> Configs:
    return _moved(make(), procs)


def _makers(
    lowering: Lowering, cost: CostModel | None, procs: Sequence[int] | None = None
) -> dict[str, Callable[[], Configs]]:
    """A function that makes each known plan: the general ones, then those on fewer processors or with narrower cuts.

    procs   preferred by plans on fewer processors; all by default
    """
    graph, num_procs = lowering.piece, lowering.machine.num_procs
    on_fastest = partial(_on_fastest, lowering, cost, frozenset(range(num_procs) if procs is None else procs))
    cuts = TensorCuts(graph)
    near = _near(lowering.machine)
    made: dict[str, Callable[[], Configs]] = {
        "data_parallel": partial(data_parallel, graph, num_procs),
        "balanced": partial(balanced, lowering, cost),
        "one_processor": partial(on_fastest, partial(one_processor, graph)),
        "one_weird_trick": partial(one_weird_trick, graph, num_procs),
        "fsdp": partial(fsdp, lowering),
        "megatron": partial(megatron, cuts, num_procs, near),
    }
    if lowering.graph.batch < num_procs * lowering.microbatches:
        along = {"context_parallel": partial(context_parallel, cuts, num_procs)}
        made |= _both(lowering, along) | _both(lowering, _by_heads(cuts, num_procs, near))
    for fewer in _halves(num_procs):
        made[f"data_parallel_{fewer}"] = partial(on_fastest, partial(data_parallel, graph, fewer))
    for fewer in _halves(near):
        made[f"megatron_{fewer}"] = partial(megatron, cuts, num_procs, fewer)
    made |= _both(lowering, _with_experts(cuts, num_procs, near))
    return made | _for_large(lowering, cuts, near) | _pipelines(lowering, cuts, near, cost)


def _near(machine: Machine) -> int:
    """How many processors may cut a layer, and so communicate all the time: those below the farthest level."""
    return machine.levels[-2:][0].group if machine.levels else 1


def _pipelines(
    lowering: Lowering, cuts: TensorCuts, near: int, cost: CostModel | None
) -> dict[str, Callable[[], Configs]]:
    """Pipelines of at most as many stages as microbatches; with sharded updates too where parameters leave little room.
    """
    num_procs = lowering.machine.num_procs
    if lowering.microbatches == 1:
        return {}
    room = int(lowering.machine.capacity.min())
    _, all_bytes = _param_bytes(lowering)
    made, rows = dict[str, Callable[[], Configs]](), Pipelines(lowering, cost)
    is_large = has_many_parts(lowering)
    most = min(lowering.microbatches, MOST_STAGES if is_large else num_procs)
    # Plans of many parts are simulated folded, which needs groups with equal work.
    must_share = is_large and bool(_shared(lowering))
    are_cut = not has_many_parts(lowering, VAST)
    for num_stages in stage_counts(num_procs, near, most):
        size = num_procs // num_stages
        ways = {"": rows.once}
        if lowering.microbatches <= FEW * num_stages:
            ways["_interleaved"] = rows.interleaved
        for suffix, width, inner in _within(lowering, cuts, size, near):
            shape = lowering.graph.batch, lowering.microbatches, num_stages, size // width
            if must_share and not is_shared(*shape, are_cut):
                continue
            for way, staged in ways.items():
                name = f"{PIPELINE}{num_stages}{way}{suffix}"
                # once for both
                made[name] = make = cache(partial(_staged, staged, num_stages, inner))
                if size > width and all_bytes / num_stages / width > ROOMY_STAGE * room:
                    made[f"{name}_zero"] = partial(_in_pieces, lowering, make)
    return made


def _within(
    lowering: Lowering, cuts: TensorCuts, size: int, near: int
) -> Iterator[tuple[str, int, Callable[[], Configs]]]:
    """The plans within a stage of `size` processors, as (suffix of the name, width, function that makes it).

    They cut samples, and positions where there are fewer samples; matrices in pairs, as wide as `near` and narrower
    (fewer widths where plans have many parts, one where they are vast); attention by heads; or experts.
    """
    yield "", 1, partial(context_parallel, cuts, size)
    widest = min(size, near)
    narrower = [] if has_many_parts(lowering, VAST) else _halves(widest)
    if has_many_parts(lowering):
        narrower = narrower[:1]
    for width in [widest, *narrower] if widest > 1 else []:
        yield f"_megatron_{width}", width, partial(megatron, cuts, size, width)
    by_heads = _by_heads(cuts, size, size if has_many_parts(lowering) else near)
    for name, make in (by_heads | _with_experts(cuts, size, near)).items():
        yield f"_{name}", 1, make


def _with_experts(cuts: TensorCuts, num_procs: int, near: int) -> dict[str, Callable[[], Configs]]:
    """Plans that cut experts, across all processors or near ones; none where the graph has no experts."""
    widths = [n for n in dict.fromkeys((num_procs, min(num_procs, near))) if with_experts_cut(cuts, num_procs, n)]
    names = ["expert_parallel" + f"_{width}" * (width < num_procs) for width in widths]
    return {n: partial(expert_parallel, cuts, num_procs, width) for n, width in zip(names, widths, strict=True)}


def _by_heads(cuts: TensorCuts, num_procs: int, near: int) -> dict[str, Callable[[], Configs]]:
    """Plans that cut attention by heads, across as many processors as heads allow, or near ones."""
    widths = head_widths(cuts, num_procs, near)
    names = ["ulysses" + f"_{width}" * (width < widths[0]) for width in widths]
    return {n: partial(ulysses, cuts, num_procs, width) for n, width in zip(names, widths, strict=True)}


def _both(lowering: Lowering, plans: Mapping[str, Callable[[], Configs]]) -> dict[str, Callable[[], Configs]]:
    """Each plan, followed by the same with sharded updates."""
    found: dict[str, Callable[[], Configs]] = {}
    for name, make in plans.items():
        found |= {name: make, f"{name}_zero": partial(_in_pieces, lowering, make)}
    return found


def _staged(staged: Callable[..., Configs], num_stages: int, inner: Callable[[], Configs]) -> Configs:
    return staged(num_stages, inner())


def _in_pieces(lowering: Lowering, make: Callable[[], Configs]) -> Configs:
    return in_pieces(lowering, make())


def _for_large(lowering: Lowering, cuts: TensorCuts, near: int) -> dict[str, Callable[[], Configs]]:
    """Plans for large models, which communicate more: cut wider than `near`, or with sharded updates.

    A wider cut is offered where half its width leaves too little room, and only where it divides heads, features and
    processors; sharded updates where the cut leaves too little room, unless gathered parameters do not fit either.
    """
    num_procs = lowering.machine.num_procs
    room = int(lowering.machine.capacity.min())
    once, all_bytes = _param_bytes(lowering)
    made: dict[str, Callable[[], Configs]] = {}
    for width in [near, *_halves(near), *_doubles(near, num_procs)]:
        held, gathered = all_bytes / width, once / width
        if width > near and (2 * held <= ROOMY * room or not _cuts_evenly(cuts, near, width)):
            break
        name = "megatron" if width == near else f"megatron_{width}"
        make = partial(megatron, cuts, num_procs, width)
        if width > near and held - gathered <= room:
            made[name] = make
        if held > ROOMY * room and gathered <= room:
            made[f"{name}_zero"] = partial(_in_pieces, lowering, make)
    return made


def _param_bytes(lowering: Lowering) -> tuple[int, int]:
    """Bytes of all parameters as they are used, as far as they are gathered at a time; and as they are kept, with their
    gradients and optimizer states where these are trained.
    """
    once, several, anew = 0, 0, {*lowering.recompute}
    for param in lowering.graph.params:
        operands = lowering.names.optional[update_name(param.name)].alignment.operands
        size, kept = prod(param.shape), lowering.updates.kept(param.dtype)
        copies = sum(o.dims == operands[0].dims for o in operands) if lowering.mode == "train" else 1
        share = AHEAD if fetch_name(param.name) in anew else 1
        once += round(share * size * itemsize(param.dtype))
        several += size * itemsize(kept) * copies
    return once, several


def _cuts_evenly(cuts: TensorCuts, near: int, width: int) -> bool:
    """Whether the nodes that are cut `near` ways can be cut `width` ways too, into equal parts or nearly."""
    nodes, found = cuts.graph.nodes, cuts.of(near)
    extents = (nodes[name].alignment.extents[axis] for name, axis in found.items())
    return cuts.of(width) == found and all(-(-n // width) * width <= n * (1 + UNEVEN) for n in extents)


def _on_fastest(
    lowering: Lowering, cost: CostModel | None, procs: frozenset[int], make: Callable[[], Configs]
) -> Configs:
    """A plan moved from the first processors to the fastest of `procs`, then to the fastest others."""
    configs = make()
    speeds = shares.speeds(lowering, cost or CostModel(lowering.machine))
    different = {*configs.values()}
    count = 1 + max(max(config.procs) for config in different)
    return _moved(configs, sorted(sorted(range(len(speeds)), key=lambda p: (p not in procs, -speeds[p]))[:count]))


def _moved(configs: Configs, procs: Sequence[int]) -> Configs:
    """A plan moved from the first processors to these."""
    moved = {c: Config(c.split, c.replicas, tuple([procs[p] for p in c.procs])) for c in {*configs.values()}}
    return {name: moved[config] for name, config in configs.items()}


def _halves(number: int) -> list[int]:
    """Half of a number, half of that and so on, a few times, down to 2."""
    return [number >> shift for shift in range(1, MOST_HALVES + 1) if number >> shift > 1]


def _doubles(number: int, most: int) -> list[int]:
    """Twice a number, twice that and so on, those below `most` that divide it."""
    found = [number << shift for shift in range(1, most.bit_length()) if number << shift < most]
    return [n for n in found if most % n == 0]


def stamped(lowering: Lowering, configs: dict[str, Config], search: str, seed: int = 0) -> Strategy:
    """The plan of these Configs, stamped with the graph and machine it was made for and its search."""
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

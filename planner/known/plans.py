"""Known plans: well-known strategies, each for any graph and number of processors.

It does not know what they cost, nor which are worth trying.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from math import gcd, prod

import numpy as np

from castile.planner.axes import Alignment
from castile.planner.choices import shares
from castile.planner.cost import CostModel
from castile.planner.graph import Graph, Node
from castile.planner.known.megatron import SAMPLES, TensorCuts
from castile.planner.known.pieces import in_pieces
from castile.planner.lower import Lowering
from castile.planner.op import Op
from castile.planner.strategy import Config, parts

# The most messages of keys and values a layer: positions are cut across few enough groups of processors, as evaluating
# a plan with more takes seconds.
MOST_PASSED = 2048

# Later positions of causal attention take more operations. Where equal lengths waste more than this share of all
# operations, each processor gets a piece from the beginning and one from the end, in twice as many kernels.
UNEVEN = 0.15

Configs = dict[str, Config]


def one_processor(graph: Graph) -> Configs:
    """Everything on processor 0."""
    return {name: Config() for name in graph.nodes}


def data_parallel(graph: Graph, num_procs: int) -> Configs:
    """Every node cut along the samples, as far as these go; nodes without samples are replicated."""
    return {name: _along(node.alignment, SAMPLES, num_procs) for name, node in graph.nodes.items()}


def balanced(lowering: Lowering, cost: CostModel | None = None) -> Configs:
    """Data parallelism in which fast processors compute more parts than slow ones, in proportion to their speeds.

    Jia, Zaharia, Aiken (MLSys 2019) name a processor twice in one Config too. Nodes without samples are replicated; on
    equal processors it is data parallelism.
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
    """Data parallelism with every parameter sharded over its users, and gathered where it is used.

    Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020;
    Zhao et al., "PyTorch FSDP", VLDB 2023. Gathered parameters stay until their last use in the step, unless the plan
    recomputes their fetches.
    """
    return in_pieces(lowering, data_parallel(lowering.piece, lowering.machine.num_procs))


def megatron(cuts: TensorCuts, num_procs: int, width: int) -> Configs:
    """Pairs of matrices cut `width` ways so that nothing is sent between the two; samples cut across what is left.

    Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019. Nodes
    between the pairs are cut along samples or positions on all processors (Korthikanti et al., "Reducing Activation
    Recomputation in Large Transformer Models", 2022). Processors of one cut are neighbours. It is data parallelism
    where the width does not divide the processors, or no matrices form a pair.
    """
    found = cuts.of(width) if width > 1 and num_procs % width == 0 else {}
    if not found:
        return data_parallel(cuts.graph, num_procs)
    return _crossed_by(cuts, found, num_procs, width) | with_experts_cut(cuts, num_procs, num_procs)


def context_parallel(cuts: TensorCuts, num_procs: int) -> Configs:
    """Every node cut along the samples, and along positions where there are more processors than samples.

    Li et al., "Sequence Parallelism: Long Sequence Training from System Perspective", ACL 2023. Causal attention
    gathers the keys and values of earlier positions.
    """
    return _crossed_by(cuts, {}, num_procs, 1)


def ulysses(cuts: TensorCuts, num_procs: int, width: int) -> Configs:
    """As `context_parallel`, but attention is cut by heads, `width` ways within groups of neighbours, and by positions
    only across these groups; experts are cut too.

    Jacobs et al., "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long Sequence Transformer
    Models", 2023. Queries, keys, values and results take an all-to-all within each group.
    """
    return _crossed_by(cuts, cuts.heads, num_procs, width) | with_experts_cut(cuts, num_procs, num_procs)


def head_widths(cuts: TensorCuts, num_procs: int, near: int) -> list[int]:
    """The widths of `ulysses`, the widest first: one that divides the processors that share a sample and cuts heads
    nearly evenly, and the same among near processors only.
    """
    along = [(cuts.graph.nodes[name].alignment.extents, axis) for name, axis in cuts.heads.items()]
    samples, counts = max((of.get(SAMPLES, 1) for of, _ in along), default=num_procs), {of[axis] for of, axis in along}
    sharing = num_procs // min(num_procs, samples)
    fair = [n for n in range(2, sharing + 1) if sharing % n == 0 and all(_fills(n, count) for count in counts)]
    return sorted({*fair[-1:], *[n for n in fair if n <= near][-1:]}, reverse=True)


def _fills(num_parts: int, extent: int) -> bool:
    return num_parts <= extent and -(-extent // num_parts) * num_parts <= extent * (1 + UNEVEN)


def expert_parallel(cuts: TensorCuts, num_procs: int, width: int) -> Configs:
    """Experts cut across as many of `width` neighbours as divide them; all other nodes as in `context_parallel`.

    Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding", ICLR 2021.
    """
    return context_parallel(cuts, num_procs) | with_experts_cut(cuts, num_procs, width)


def _crossed_by(cuts: TensorCuts, axes: Mapping[str, str], num_procs: int, width: int) -> Configs:
    """Each node cut along its axis in `axes`, if it has one, within groups of `width` processors."""

    def crossed(is_folded: bool) -> Configs:
        each = cuts.graph.nodes.items()
        return {name: _crossed(node.alignment, axes.get(name, ""), num_procs, width, is_folded) for name, node in each}

    plain = crossed(False)
    if _unevenness(cuts.graph, plain) <= UNEVEN:
        return plain
    folded = crossed(True)
    return folded if _num_apart(folded) >= _num_apart(plain) else plain


def _num_apart(configs: Configs) -> int:
    """The most processors with distinct work that a node has."""
    return max(len({*config.procs}) // config.replicas for config in {*configs.values()})


def _unevenness(graph: Graph, configs: Configs) -> float:
    """The share of operations that is wasted by uneven parts: if all parts of each node took as many as its longest."""
    alike = Counter((node.op, node.alignment, configs[name]) for name, node in graph.nodes.items())
    flops = np.array([times * _flops(*of) for of, times in alike.items()])
    return float(flops[:, 0].sum() / flops[:, 1].sum()) - 1


@lru_cache(maxsize=4096)
def _flops(op: Op, a: Alignment, config: Config) -> np.ndarray:
    """float64[2]: operations of a forward pass, with all parts as long as the longest, and as they are."""
    node = Node("", op, (), (), a)
    if type(op).flops is Op.flops:
        return np.full(2, op.flops("F", node.whole()))
    found = [op.flops("F", part) for part in parts(node, config.split)]
    return np.array([max(found) * len(found), sum(found)])


def with_experts_cut(cuts: TensorCuts, num_procs: int, width: int) -> Configs:
    """The nodes with experts, cut by these across as many of `width` neighbours as divide them."""
    found = {}
    for name, axis in cuts.experts.items():
        a = cuts.graph.nodes[name].alignment
        if (degree := gcd(a.extents[axis], width, num_procs)) > 1:
            found[name] = _crossed(a, axis, num_procs, degree)
    return found


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
    """A Config with one cut axis on the first processors; one object for all nodes, as plans compare their Configs."""
    return Config({axis: degree} if axis else {}, replicas, tuple(range(degree * replicas)))


@lru_cache(maxsize=4096)
def _crossed(a: Alignment, axis: str, num_procs: int, width: int, is_folded: bool = False) -> Config:
    """A Config with samples cut across groups of `width` processors, and an axis cut within them. Where there are fewer
    samples than groups, another axis of the results (positions) is cut across the rest.

    axis        "" for samples over all processors, else the other axis within groups too, else replicas in a group
    is_folded   whether the other axis is cut twice as often, with one piece from its beginning and one from its end on
                each processor
    """
    ways = num_procs // width
    samples = 1 if SAMPLES in a.frozen else a.extents.get(SAMPLES, 1)
    if not axis and samples >= num_procs:
        return _along(a, SAMPLES, num_procs)
    groups = min(ways, samples)
    if not axis:
        # Whole samples, or parts of one, are contiguous in memory; the same parts of several samples would be packed.
        groups *= gcd(width, samples // groups) if samples % groups == 0 else 1
        width = num_procs // max(groups, ways)
    left = max(1, ways // groups) if SAMPLES in a.axes else 1
    while left > 1 and num_procs * left * (1 + is_folded) > MOST_PASSED:
        left //= 2
    within = 1 if axis else width
    second, degree = _second(a, axis, within, left)
    # Without samples to cut, groups are replicas.
    copies = ways if groups == 1 and degree <= within else 1
    # From the farthest processors to neighbours; "" is for replicas.
    rows = [("", copies), (SAMPLES if groups > 1 else "", groups), (second, degree)]
    rows += [(axis, width)] if axis or not second else []
    if is_folded and second and _is_free(a, second, 2 * degree):
        return _laid_out(a, rows, left if left > 1 and degree > within else degree)
    return _laid_out(a, rows)


def _second(a: Alignment, axis: str, within: int, left: int) -> tuple[str, int]:
    """The other axis of the results to cut, and its degree: across the groups that samples leave, and within each;
    ("", 1) if there is none.
    """
    others = [x for result in a.results for x in result.axes if x not in (SAMPLES, axis)]
    params = [o.axes for o in a.operands if o.param]
    of_matrices = {x for axes in params if not {*axes} <= {SAMPLES, axis, *others} for x in axes}
    # An axis of a parameter that runs over positions may be cut, if no other axis can be.
    free = sorted((x for x in others if x not in of_matrices), key=lambda x: any(x in axes for axes in params))
    wished = [(x, left * within) for x in free] + [(x, within) for x in others]
    return next(((x, n) for x, n in wished if n > 1 and _is_free(a, x, n)), ("", 1))


def _laid_out(a: Alignment, rows: list[tuple[str, int]], turning: int = 0) -> Config:
    """A Config from (axis, degree) rows, from the farthest processors to neighbours; "" is for replicas.

    turning   where not 0, the third axis is cut twice as often: across so many groups there and back, in the same order
              within a group both times
    """
    procs = np.arange(prod(n for _, n in rows)).reshape([n for _, n in rows])
    if turning:
        axis, degree = rows[2]
        there = np.arange(degree).reshape(turning, -1)
        procs = procs.take(np.concatenate([there, there[::-1]]).reshape(-1), axis=2)
        rows = [*rows[:2], (axis, 2 * degree), *rows[3:]]
    inner = sorted(range(len(rows)), key=lambda n: a.axes.index(rows[n][0]) if rows[n][0] else len(a.axes))
    split = {name: rows[n][1] for n in inner if (name := rows[n][0])}
    return Config(split, procs.size // prod(split.values()), tuple(procs.transpose(inner).reshape(-1).tolist()))


def _is_free(a: Alignment, axis: str, degree: int) -> bool:
    return axis not in a.frozen and a.extents[axis] >= degree

"""Recomputation: which results not to keep for gradient passes, so that a step needs less memory and more time.

`selective` drops what costs next to nothing to compute again (Korthikanti et al., "Reducing Activation Recomputation in
Large Transformer Models", MLSys 2023, does so with attention); `full` all but what lies between stretches of the
network (Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016); `parameters` what was
fetched of parameters, which lie in pieces where memory is short (stage 3 of Rajbhandari et al., "ZeRO", SC 2020; Zhao
et al., "PyTorch FSDP", VLDB 2023). It does not know processors, nor what a plan takes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from fnmatch import fnmatchcase
from math import prod

import numpy as np

from castile.planner.families.updates import Updates
from castile.planner.graph import Graph, Node
from castile.planner.step.dropped import Reads
from castile.planner.step.passes import training
from castile.planner.step.program import fetch_name
from castile.runtime.strict import suggestion

# What takes at most so many operations for each element of its results is computed again nearly for nothing: it waits
# for memory.
FEW_FLOPS = 16
# What holds less than such a share of what a result that is kept holds on average is kept.
LITTLE = 0.1
# Stretches are tried whose longest keeps at most such shares of what the whole network does.
SHARES = [0.9**n for n in range(60)]

# The smallest parameters, so much of all together, are kept: to fetch them takes longer than they need memory.
LITTLE_PARAMS = 0.01

NOTHING, SELECTIVE, FULL, PARAMETERS = WAYS = ("none", "selective", "full", "parameters")


def named(text: str, graph: Graph, updates: Updates) -> tuple[str, ...]:
    """The nodes, and fetches of parameters, that words of WAYS or patterns of names mean, with commas between them.

    Raises ValueError for a pattern that none has.
    """
    ways = {NOTHING: lambda *_: (), SELECTIVE: selective, FULL: full, PARAMETERS: lambda *_: parameters(graph)}
    every = [*graph.nodes, *(fetch_name(param.name) for param in graph.params)]
    found: dict[str, None] = {}
    for word in (part.strip() for part in text.split(",")):
        matching = ways[word](graph, updates) if word in ways else [n for n in every if fnmatchcase(n, word)]
        if not matching and word not in ways:
            near = suggestion(word, [*WAYS, *graph.nodes])
            raise ValueError(f"{word!r} is no node of {graph.name}{near}: give {', '.join(WAYS)}, or names of nodes")
        found.update(dict.fromkeys(matching))
    return tuple(found)


def parameters(graph: Graph) -> tuple[str, ...]:
    """The fetches of parameters, without the smallest."""
    return tuple([fetch_name(name) for name in large(graph)])


def large(graph: Graph) -> list[str]:
    """The parameters without the smallest; those of one size are all among them, or none."""
    sizes = {param.name: prod(param.shape) for param in graph.params}
    total, little = sum(sizes.values()), 0
    for size, count in sorted(Counter(sizes.values()).items()):
        if little + size * count > LITTLE_PARAMS * total:
            return [name for name in sizes if sizes[name] >= size]
        little += size * count
    return []


def selective(graph: Graph, updates: Updates) -> tuple[str, ...]:
    """What takes few operations, of what is kept.

    Nothing that takes what is dropped itself: else the first gradients would have all of it computed, to be kept again.
    """
    kept, found = _kept(graph, updates), list[str]()
    there = kept | {t.name for t in graph.params} | set(graph.inputs)
    little = LITTLE * sum(_nbytes(graph, t) for t in kept) / max(1, len(kept))
    for node in graph.nodes.values():
        if there >= set(node.inputs) and _is_cheap(node, graph):
            if any(t in kept and _nbytes(graph, t) > little for t in node.outputs):
                found.append(node.name)
                there.difference_update(node.outputs)
            elif not kept & set(node.outputs):
                found.append(node.name)
                there.update(node.outputs)
    return tuple(found)


def full(graph: Graph, updates: Updates) -> tuple[str, ...]:
    """All but what goes from one stretch to the next, and the last stretch, which gradients begin with."""
    kept, nodes = _kept(graph, updates), list(graph.nodes.values())
    place = {t: n for n, node in enumerate(nodes) for t in node.outputs}
    last = {t: n for n, node in enumerate(nodes) for t in node.inputs if t in place}
    inside, across = np.zeros((2, len(nodes) + 1), np.int64)
    for t, n in place.items():
        inside[n + 1] += _nbytes(graph, t) * (t in kept)
        if last.get(t, n) > n:
            across[n + 1] += _nbytes(graph, t)
            across[last[t] + 1] -= _nbytes(graph, t)
    ends = stretches(inside.cumsum(), across.cumsum())
    end_of = np.repeat(ends, np.diff([0, *ends]))
    return tuple(
        node.name
        for n, node in enumerate(nodes)
        if end_of[n] < len(nodes) and all(last.get(t, n) < end_of[n] for t in node.outputs)
    )


def stretches(upto: np.ndarray, across: np.ndarray) -> list[int]:
    """Where stretches of some in a row end, so that what lies between them and what the longest holds is least.

    upto[n]     what the first n hold, rising from 0
    across[n]   what must be kept where a stretch ends behind the first n
    """
    plans = [_within(upto, across, int(share * upto[-1])) for share in SHARES]
    return min((plan for plan in plans if plan), key=lambda plan: _holds(upto, across, plan))


def _holds(upto: np.ndarray, across: np.ndarray, ends: Sequence[int]) -> int:
    longest = np.diff(upto[[0, *ends]]).max()
    return int(across[list(ends[:-1])].sum() + longest)


def _within(upto: np.ndarray, across: np.ndarray, most: int) -> list[int]:
    """The ends of stretches none of which holds more than `most`, with least between them; [] where there are none."""
    least, before = np.full(len(upto), np.iinfo(np.int64).max), np.zeros(len(upto), np.int64)
    least[0] = 0
    # Where a stretch may begin, the best first, and of those behind it none is as good as a later one.
    begins = deque([0])
    for n in range(1, len(upto)):
        while begins and upto[n] - upto[begins[0]] > most:
            begins.popleft()
        if begins:
            before[n] = begins[0]
            least[n] = least[begins[0]] + across[n]
            while begins and least[begins[-1]] >= least[n]:
                begins.pop()
            begins.append(n)
    ends, n = list[int](), len(upto) - 1
    while n > 0 and least[n] < np.iinfo(np.int64).max:
        ends.append(n)
        n = int(before[n])
    return ends[::-1]


def _kept(graph: Graph, updates: Updates) -> set[str]:
    """What gradient passes read of what nodes make."""
    reads, found = Reads(graph), set[str]()
    for step in training(graph, updates, frozenset()).steps:
        if step.which != "F":
            found.update(reads.of(step.node, step.which))
    return found - {t.name for t in graph.params} - set(graph.inputs)


def _is_cheap(node: Node, graph: Graph) -> bool:
    made = sum(prod(graph.tensors[t].shape) for t in node.outputs)
    return node.op.flops("F", node.whole()) <= FEW_FLOPS * made


def _nbytes(graph: Graph, tensor: str) -> int:
    of = graph.tensors[tensor]
    return prod(of.shape) * np.dtype(of.dtype).itemsize

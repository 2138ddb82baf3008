"""Recomputation (activation checkpointing): which results not to keep for gradient passes, to trade time for memory.

selective    drops results that cost next to nothing to recompute (Korthikanti et al., "Reducing Activation
             Recomputation in Large Transformer Models", MLSys 2023, does so with attention), and their gathered copies,
             as the same paper's sequence parallelism does with results of a normalisation
full         drops all results but those between stretches of the network (Chen, Xu, Zhang, Guestrin, "Training Deep
             Nets with Sublinear Memory Cost", 2016)
40%          drops those that take fewest operations for the memory that they free, until this share is kept
parameters   drops gathered parameters (stage 3 of Rajbhandari et al., "ZeRO", SC 2020; Zhao et al., "PyTorch FSDP",
             VLDB 2023)

It does not know processors, nor what a plan takes.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod
from operator import itemgetter

import numpy as np

from castile.planner.families.updates import Updates
from castile.planner.graph import Graph, Node
from castile.planner.step.dropped import Reads
from castile.planner.step.passes import training
from castile.planner.step.program import fetch_name
from castile.runtime.strict import suggestion

# A node with at most this many operations for each element of its results is cheap: it waits for memory.
FEW_FLOPS = 16
# A result is kept if it is smaller than this share of the mean size of kept results.
LITTLE = 0.1
# The steps between `selective` and `full`, and with small steps.
STEPS, SMALL_STEPS = 4, 12
# The shares of the whole network's results that the longest stretch may hold, to be tried.
SHARES = [0.9**n for n in range(60)]
# The smallest parameters, this share of all, are kept: fetching them takes longer than their memory is worth. Those
# with MANY_ELEMENTS are not among them: in a mixture of experts all other matrices together are a hundredth.
LITTLE_PARAMS, MANY_ELEMENTS = 0.01, 2**20

NOTHING, SELECTIVE, FULL, PARAMETERS = WAYS = ("none", "selective", "full", "parameters")


class Recomputation:
    """The nodes of a graph that each way of recomputation drops, computed once."""

    def __init__(self, graph: Graph, updates: Updates) -> None:
        self.graph, self.updates = graph, updates
        self._makers = {t: node for node in graph.nodes.values() for t in node.outputs}

    def named(self, text: str) -> tuple[str, ...]:
        """The nodes, and fetches of parameters, that are named by words of WAYS, shares (`40%`) or patterns of names,
        with commas between them. Fetches are matched only by patterns with a /, as `fc*/fetch`.

        Raises ValueError for a pattern that matches nothing, and for `none` beside other words.
        """
        found: dict[str, None] = {}
        words = [part.strip() for part in text.split(",")]
        if NOTHING in words and {*words} - {NOTHING, PARAMETERS}:
            raise ValueError(f"{text!r} asks for {NOTHING!r} and for more")
        for word in words:
            found.update(dict.fromkeys(self._parsed(word)))
        return tuple(found)

    def _parsed(self, word: str) -> Sequence[str]:
        graph = self.graph
        match word:
            case "none":
                return ()
            case "selective":
                return self.selective
            case "full":
                return self.full
            case "parameters":
                return [fetch_name(name) for name in large(graph)]
        if share := re.fullmatch(r"(\d{1,2})%", word):
            return self.partial(int(share.group(1)) / 100)
        every = map(fetch_name, [param.name for param in graph.params]) if "/" in word else graph.nodes
        matching = [name for name in every if fnmatchcase(name, word)]
        if not matching:
            near = suggestion(word, [*WAYS, *graph.nodes])
            raise ValueError(
                f"{word!r} is no node of {graph.name}{near}: give {', '.join(WAYS)}, a share as 40%, or names of nodes"
            )
        return matching

    def rising(self, steps: int = STEPS) -> tuple[str, ...]:
        """Words with rising recomputation: `selective`, shares in equal steps, without those that name the same nodes,
        and `full`.
        """
        most, least = self._kept_share(self.selective), self._kept_share(self.full)
        meant, end = {frozenset(self.selective): SELECTIVE}, frozenset(self.full)
        for n in range(1, steps):
            percent = round(100 * (most + n * (least - most) / steps))
            meant.setdefault(frozenset(self.partial(percent / 100)), f"{percent}%")
        return *[word for names, word in meant.items() if names != end], FULL

    def ways(self, gathering: bool, steps: int = STEPS) -> tuple[str, ...]:
        """The words of `rising`; with `gathering` each also with parameters that are gathered for each pass."""
        every = self.rising(steps)
        return (PARAMETERS, *(way for word in every for way in (word, f"{word},{PARAMETERS}"))) if gathering else every

    @cached_property
    def selective(self) -> tuple[str, ...]:
        """The cheap nodes whose results gradients read.

        None of them reads a dropped result: else the first gradients would recompute all of them, and keep that.
        """
        graph, sizes, found = self.graph, self._sizes, list[str]()
        there = sizes.keys() | {t.name for t in graph.params} | set(graph.inputs)
        little = LITTLE * sum(sizes.values()) / max(1, len(sizes))
        for node in graph.nodes.values():
            if there >= set(node.inputs) and _is_cheap(node, graph):
                if any(sizes.get(t, 0) > little for t in node.outputs):
                    found.append(node.name)
                    there.difference_update(node.outputs)
                elif not sizes.keys() & set(node.outputs):
                    found.append(node.name)
                    there.update(node.outputs)
        return tuple(found)

    def partial(self, share: float) -> tuple[str, ...]:
        """The nodes with the fewest operations for each byte that they free, until at most a share of the results that
        gradients read is kept. Cheap nodes are always among them, results between stretches never.

        Results that are not kept anyway, but are read to recompute others, are recomputed too. Of nodes with equal
        operations the first are dropped first: these are in the pipeline stages that keep most.
        """
        found, sizes = {*self.selective}, self._sizes
        left = sum(sizes.values()) * (self._kept_share(self.selective) - share)
        for _, frees, again in self._worth:
            if left <= 0:
                break
            found |= again
            left -= frees
        return tuple([name for name in self.graph.nodes if name in found])

    @cached_property
    def _worth(self) -> list[tuple[float, int, set[str]]]:
        """(operations for each byte freed, bytes freed, nodes that are recomputed) of nodes that may be dropped, the
        cheapest first.
        """
        graph, sizes, may, cheap = self.graph, self._sizes, {*self.full}, {*self.selective}
        there = {t for t in sizes if t not in self._makers or self._makers[t].name not in cheap}
        rows = []
        for node in (graph.nodes[name] for name in graph.nodes if name in may):
            frees = sum(sizes[t] for t in there.intersection(node.outputs))
            if frees:
                again = self._recomputed(node, there, may)
                rows.append((sum(_flops(of) for of in again) / frees, frees, {of.name for of in again}))
        return sorted(rows, key=itemgetter(0))

    def _recomputed(self, node: Node, there: Collection[str], may: Collection[str]) -> list[Node]:
        """What is computed again for a node, from what is there and from what may not be."""
        found, left = {node.name: node}, [node]
        while left:
            for t in left.pop().inputs:
                maker = self._makers.get(t)
                if maker is not None and t not in there and maker.name in may and maker.name not in found:
                    found[maker.name] = maker
                    left.append(maker)
        return [*found.values()]

    @cached_property
    def full(self) -> tuple[str, ...]:
        """All nodes but those whose results cross between stretches, and the last stretch, where gradients begin."""
        graph, sizes, nodes = self.graph, self._sizes, list(self.graph.nodes.values())
        place = {t: n for n, node in enumerate(nodes) for t in node.outputs}
        last = {t: n for n, node in enumerate(nodes) for t in node.inputs if t in place}
        inside, across = np.zeros((2, len(nodes) + 1), np.int64)
        for t, n in place.items():
            inside[n + 1] += sizes.get(t, 0)
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

    def _kept_share(self, dropped: Iterable[str]) -> float:
        """The share that is kept of the bytes that gradients read."""
        free = sum(self._sizes.get(t, 0) for name in dropped for t in self.graph.nodes[name].outputs)
        return 1 - free / max(1, sum(self._sizes.values()))

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Bytes of each node's result that gradient passes read."""
        graph = self.graph
        reads, found = Reads(graph), set[str]()
        for step in training(graph, self.updates, frozenset()).steps:
            if step.which != "F":
                found.update(reads.of(step.node, step.which))
        found.difference_update(t.name for t in graph.params)
        return {t: _nbytes(graph, t) for t in found.difference(graph.inputs)}


def large(graph: Graph) -> list[str]:
    """All parameters but the smallest; of parameters of one size all are among them, or none."""
    sizes = {param.name: prod(param.shape) for param in graph.params}
    total, little = sum(sizes.values()), 0
    for size, count in sorted(Counter(sizes.values()).items()):
        if size >= MANY_ELEMENTS or little + size * count > LITTLE_PARAMS * total:
            return [name for name in sizes if sizes[name] >= size]
        little += size * count
    return []


def stretches(upto: np.ndarray, across: np.ndarray) -> list[int]:
    """Where stretches of nodes end, so that the bytes kept between them plus those of the longest stretch are least.

    upto[n]     bytes of the first n nodes, rising from 0
    across[n]   bytes that are kept where a stretch ends after the first n nodes
    """
    plans = [_within(upto, across, int(share * upto[-1])) for share in SHARES]
    return min((plan for plan in plans if plan), key=lambda plan: _holds(upto, across, plan))


def _holds(upto: np.ndarray, across: np.ndarray, ends: Sequence[int]) -> int:
    longest = np.diff(upto[[0, *ends]]).max()
    return int(across[list(ends[:-1])].sum() + longest)


def _within(upto: np.ndarray, across: np.ndarray, most: int) -> list[int]:
    """The ends of stretches of at most `most` bytes with the fewest bytes between them; [] where there are none."""
    least, before = np.full(len(upto), np.iinfo(np.int64).max), np.zeros(len(upto), np.int64)
    least[0] = 0
    # candidates for the begin of a stretch, the best first: a monotone queue
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


def _is_cheap(node: Node, graph: Graph) -> bool:
    made = sum(prod(graph.tensors[t].shape) for t in node.outputs)
    return _flops(node) <= FEW_FLOPS * made


def _flops(node: Node) -> float:
    return node.op.flops("F", node.whole())


def _nbytes(graph: Graph, tensor: str) -> int:
    of = graph.tensors[tensor]
    return prod(of.shape) * np.dtype(of.dtype).itemsize

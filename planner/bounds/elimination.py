"""Elimination: the least of a sum of tables, each over a few variables, found one variable after the other.

Bertele, Brioschi, "Nonserial Dynamic Programming", 1972. Here the variables are nodes, whose values are numbers of
Configs; it does not know what the tables hold. For the sum f(a, b) + g(b, c):

    eliminate c:   h(b) = min over c of g(b, c)
    eliminate a:   k(b) = min over a of f(a, b)
    eliminate b:   min over b of h(b) + k(b), and back: the best b, then the best a and c for it
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

Scope = tuple[int, ...]
Factor = tuple[Scope, np.ndarray]


def elimination_order(num_nodes: int, scopes: Iterable[Scope]) -> list[int]:
    """All nodes, in an order that keeps tables small: the next one's elimination joins the fewest pairs of neighbours
    that were not joined before (least fill).
    """
    near = _neighbours(num_nodes, scopes)

    def fill(node: int) -> int:
        return sum(b not in near[a] for a in near[node] for b in near[node] if a < b)

    fills = [fill(node) for node in range(num_nodes)]
    heap = [(count, node) for node, count in enumerate(fills)]
    heapq.heapify(heap)
    order: list[int] = []
    done = [False] * num_nodes
    while heap:
        count, node = heapq.heappop(heap)
        if done[node] or count != fills[node]:
            continue
        done[node] = True
        order.append(node)
        around = near[node]
        for other in around:
            near[other] |= around - {other}
            near[other].discard(node)
        for other in sorted(around.union(*(near[other] for other in around))):
            if fills[other] != (now := fill(other)):
                fills[other] = now
                heapq.heappush(heap, (now, other))
    return order


def num_entries(sizes: Sequence[int], scopes: Iterable[Scope], order: Sequence[int]) -> int:
    """The number of entries of all tables that an elimination in this order makes."""
    near, total = _neighbours(len(sizes), scopes), 0
    for node in order:
        total += sizes[node] * prod(sizes[other] for other in near[node])
        for other in near[node]:
            near[other] |= near[node] - {other}
            near[other].discard(node)
    return total


def _neighbours(num_nodes: int, scopes: Iterable[Scope]) -> list[set[int]]:
    near: list[set[int]] = [set() for _ in range(num_nodes)]
    for scope in scopes:
        for node in scope:
            near[node].update(other for other in scope if other != node)
    return near


def minimise(factors: Iterable[Factor], order: Sequence[int]) -> tuple[list[int], int]:
    """(the point at which the sum of all factors is least, that sum)

    A factor is a table with its scope, the nodes along its axes. To eliminate a node, all tables with it in their scope
    are added up and minimised over it, which leaves a table over its neighbours.
    """
    place = {node: number for number, node in enumerate(order)}
    waiting: dict[int, list[Factor]] = {node: [] for node in order}
    for scope, table in factors:
        waiting[min(scope, key=place.__getitem__)].append((scope, table))
    total, decided = 0, []
    for node in order:
        rest = tuple(sorted({other for scope, _ in waiting[node] for other in scope} - {node}))
        summed = _sum(waiting.pop(node), (*rest, node))
        decided.append((node, rest, summed.argmin(axis=-1)))
        if rest:
            waiting[min(rest, key=place.__getitem__)].append((rest, summed.min(axis=-1)))
        else:
            total += int(summed.min())
    point = [0] * len(order)
    for node, rest, best in reversed(decided):
        point[node] = int(best[tuple(point[other] for other in rest)])
    return point, total


def _sum(factors: Sequence[Factor], scope: Scope) -> np.ndarray:
    """The sum of tables as a table over one scope that contains all of theirs."""
    total: np.ndarray = np.zeros((1,) * len(scope), np.int64)
    for own, table in factors:
        axes = sorted(range(len(own)), key=lambda axis: scope.index(own[axis]))
        lengths = dict(zip(own, table.shape, strict=True))
        total = total + table.transpose(axes).reshape([lengths.get(node, 1) for node in scope])
    return total

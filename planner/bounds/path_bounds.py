"""Bounds that choose the Configs of all open nodes together: a path of passes, and the work that follows it.

The minimum of such a sum over single nodes and pairs is found by elimination (Dechter, "Mini-buckets: A general scheme
for bounded inference", 2003), once for all plans; what is decided is then looked up in the tables. It does not know who
searches.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from castile.planner.bounds.elimination import Scope, num_entries
from castile.planner.bounds.partial_bounds import PartialBounds

# Entries of all tables; where a graph needs more, there are no such bounds.
MOST_ENTRIES = 2**25

Tables = dict[Scope, np.ndarray]


class PathBounds:
    """A bound for each rung, a pass of the longest path: no step is shorter than the path up to the rung plus the work
    of all passes that follow the rung, spread evenly over all processors.

    tables   by scope (ascending numbers of nodes): [rungs, C of each], picoseconds times processors
    ahead    the same of what is left when a node is eliminated, by the number of that node
    """

    def __init__(self, relaxed: PartialBounds) -> None:
        self.relaxed, self.num_procs = relaxed, relaxed.busy[0].shape[1]
        self.path = longest(relaxed)
        self.tables: Tables = {}
        self.paths: Tables = {}
        self.ahead: dict[int, tuple[Scope, np.ndarray]] = {}
        if self._num_entries() <= MOST_ENTRIES:
            self._add_path()
            self.paths = {scope: table.copy() for scope, table in self.tables.items()}
            self._add_work()
            self._eliminate()

    def bounds(self, chosen: Mapping[int, int], node: int) -> np.ndarray:
        """int64[C of `node`]: lower bounds in picoseconds, where all nodes before it are decided."""
        return -(-self._sums(self.tables, chosen, node).max(axis=0) // self.num_procs)

    def bound(self, chosen: Mapping[int, int], ends: np.ndarray) -> int:
        """A lower bound in picoseconds where the first nodes are decided and passes end at these times or later.

        ends   int64[S] of the passes
        """
        node = len(chosen) - 1
        sums = self._sums(self.tables, chosen, node)[:, chosen[node]]
        paths = self._sums(self.paths, chosen, node, ahead=False)[:, chosen[node]]
        # Up to a pass whose nodes are all chosen the path takes at least as long as that pass is known to.
        of_nodes = [self.relaxed.node[s] for s in self.path]
        known = next((n for n, own in enumerate(of_nodes) if own > node), len(self.path))
        later = self.num_procs * ends[self.path[:known]] - paths[1 : known + 1]
        gains = np.concatenate([[0], later, np.full(len(sums) - 1 - known, later[-1] if known else 0)])
        return int(-(-(sums + np.maximum(gains, 0)).max() // self.num_procs))

    def _sums(self, tables: Tables, chosen: Mapping[int, int], node: int, ahead: bool = True) -> np.ndarray:
        """[rungs, C of `node`]: the terms of the nodes up to this one, and the minimum over all others."""
        total = np.zeros((len(self.path) + 1, len(self.relaxed.choices[node])), np.int64)
        rows = [(scope, table) for scope, table in tables.items() if scope[-1] <= node]
        rows += [r for of, r in self.ahead.items() if ahead and of > node and (not r[0] or r[0][-1] <= node)]
        for scope, table in rows:
            total += self._row(scope, table, chosen, node)
        return total

    def _row(self, scope: Scope, table: np.ndarray, chosen: Mapping[int, int], node: int) -> np.ndarray:
        """[rungs, C of `node`], or [rungs, 1] where it is not in the scope."""
        row = table[(slice(None), *(slice(None) if n == node else chosen[n] for n in scope))]
        return row if node in scope else row[:, None]

    def _num_entries(self) -> int:
        """The entries of all tables: of the path, of each node, and of those that elimination makes."""
        sizes = [len(configs) for configs in self.relaxed.choices]
        scopes = [(self.relaxed.node[before], self.relaxed.node[after]) for before, after in pairwise(self.path)]
        return (len(self.path) + 1) * num_entries(sizes, scopes, range(len(sizes))[::-1])

    def _add_path(self) -> None:
        """Add the passes of the path, and the delays between them, to all rungs behind them."""
        for rung, s in enumerate(self.path):
            own = self.relaxed.node[s]
            self._table((own,))[rung + 1 :] += self.num_procs * self.relaxed.shortest[s]
        for rung, (before, after) in enumerate(pairwise(self.path)):
            a, b = self.relaxed.node[before], self.relaxed.node[after]
            delay = np.max([wait.delay for wait in self.relaxed.waits[after] if wait.before == before], axis=0)
            table = self._table(tuple(sorted({a, b})))
            table[rung + 2 :] += self.num_procs * (delay.T if a > b else delay)

    def _add_work(self) -> None:
        for rung, s in enumerate([None, *self.path]):
            for after in range(len(self.relaxed.node)) if s is None else _after(self.relaxed, s):
                self._table((self.relaxed.node[after],))[rung] += self.relaxed.busy[after].sum(axis=1)

    def _table(self, scope: Scope) -> np.ndarray:
        if scope not in self.tables:
            shape = [len(self.relaxed.choices[n]) for n in scope]
            self.tables[scope] = np.zeros((len(self.path) + 1, *shape), np.int64)
        return self.tables[scope]

    def _eliminate(self) -> None:
        """From the last node to the first: add up all tables with it, and minimise over its Configs."""
        for node in reversed(range(len(self.relaxed.names))):
            self.relaxed.check()
            known = [(s, t) for s, t in self.tables.items() if s[-1] == node]
            known += [(s, t) for s, t in self.ahead.values() if s and s[-1] == node]
            scope = tuple(sorted({n for s, _ in known for n in s}))
            total: np.ndarray = np.zeros((1,) * (len(scope) + 1), np.int64)
            for own, table in known:
                lengths = dict(zip(own, table.shape[1:], strict=True))
                total = total + table.reshape(-1, *(lengths.get(n, 1) for n in scope))
            if scope:
                self.ahead[node] = scope[:-1], total.min(axis=-1)


def longest(relaxed: PartialBounds) -> list[int]:
    """The passes of a longest path, each at its shortest."""
    ends: list[int] = []
    came: list[int] = []
    for s, waits in enumerate(relaxed.waits):
        found = [(ends[w.before] + int(w.delay.min()), w.before) for w in waits]
        begin, before = max(found, default=(0, -1))
        ends.append(begin + int(relaxed.shortest[s].min()))
        came.append(before)
    path, s = [], int(np.argmax(ends))
    while s >= 0:
        path.append(s)
        s = came[s]
    return path[::-1]


def _after(relaxed: PartialBounds, s: int) -> list[int]:
    """The passes that follow this one under all Configs: every part starts after some part of it has ended."""
    found = {s}
    for other in range(s + 1, len(relaxed.waits)):
        if any(wait.before in found and wait.delay.min() >= 0 for wait in relaxed.waits[other]):
            found.add(other)
    return sorted(found - {s})

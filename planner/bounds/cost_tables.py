"""The cheapest plan by the additive cost model, among some Configs of each node.

Costs are tables, [C] for a node and [C, C] for a pair, and the plan is found by elimination. The cost of a pair takes
milliseconds, so at first a quick bound below it stands in the table (`transfer_bound.least_move`): the best plan by
these entries is found, the entries that it uses are replaced by costs, and so on until a best plan uses only costs. It
does not know which Configs are worth looking at.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from itertools import takewhile

import numpy as np

from castile.planner.bounds.additive import Additive
from castile.planner.bounds.elimination import Scope, elimination_order, minimise, num_entries
from castile.planner.bounds.transfer_bound import least_move
from castile.planner.strategy import Config

# So many microbatches are priced: the first, which adds its gradients to nothing, one for all others, and the last.
MICROBATCHES = 3
# Weights of work, and of (sync, move) in turn: transfers count as much as work, half as much, or only those between
# nodes do, as sums of gradients are the first to be hidden beside work.
WORK, WEIGHTS = 2, ((2, 2), (1, 1), (0, 2))
# The most entries of all tables that elimination makes.
MOST_ENTRIES = 2**21


def groups_of_equal_nodes(model: Additive, spaces: Mapping[str, object]) -> list[list[str]]:
    """The names of nodes with equal kind and equal choices: these share one list of Configs."""
    found: dict[Hashable, list[str]] = {}
    for name, kind in model.kinds.items():
        found.setdefault((kind, id(spaces[name])), []).append(name)
    return [*found.values()]


class OutOfTime(Exception):
    """The time is over."""


class CostTables:
    """The Configs of each node, by name, and their costs so far. Nodes with equal kind and Configs share tables.

    spent   called before each table is filled; once it says that time is over, none is
    """

    def __init__(
        self, model: Additive, choices: Mapping[str, Sequence[Config]], spent: Callable[[], bool] = lambda: False
    ) -> None:
        self.model, self.names, self.spent = model, list(model.steps), spent
        number = {name: n for n, name in enumerate(self.names)}
        self.scopes: list[Scope] = [(number[a], number[b]) for a, b in (edge.nodes for edge in model.edges)]
        self.configs = [choices[name] for name in self.names]
        self.keys = [(edge.key, *(id(choices[name]) for name in edge.nodes)) for edge in model.edges]
        self.order = elimination_order(len(self.names), self.scopes)

    @cached_property
    def moves(self) -> dict[Hashable, np.ndarray]:
        """By kind of edge, [C of the one, C of the other]: a bound below each cost, later the cost itself."""
        found: dict[Hashable, np.ndarray] = {}
        for key, edge, (a, b) in zip(self.keys, self.model.edges, self.scopes, strict=True):
            if key not in found:
                self._refuse_late()
                found[key] = least_move(self.model, edge, self.configs[a], self.configs[b])
        return found

    @cached_property
    def known(self) -> dict[Hashable, np.ndarray]:
        """Which entries of `moves` are costs."""
        return {key: np.zeros(table.shape, bool) for key, table in self.moves.items()}

    @cached_property
    def work(self) -> list[np.ndarray]:
        """By node, [C]: the work of each Config."""
        return [self._work(name, configs) for name, configs in zip(self.names, self.configs, strict=True)]

    def _work(self, name: str, configs: Sequence[Config]) -> np.ndarray:
        self._refuse_late()
        return np.array([self.model.work(name, config) for config in configs], np.int64)

    def _refuse_late(self) -> None:
        if self.spent():
            raise OutOfTime

    @cached_property
    def own(self) -> list[Hashable]:
        """By node the kind of its `sync`: equal where the transfers that it decides alone cost the same."""
        return [(self.model.own_key(name), id(configs)) for name, configs in zip(self.names, self.configs, strict=True)]

    @cached_property
    def sync(self) -> dict[Hashable, np.ndarray]:
        """By such a kind, [C]: the cost of the transfers that a Config decides alone; -1 where it is not computed yet.
        """
        return {key: np.full(len(configs), -1, np.int64) for key, configs in zip(self.own, self.configs, strict=True)}

    @property
    def num_configs(self) -> int:
        return sum(map(len, self.configs))

    @property
    def num_entries(self) -> int:
        """The entries of all tables that elimination fills."""
        return num_entries([len(configs) for configs in self.configs], self.scopes, self.order)

    def optimum(self, sync: int, move: int) -> dict[str, Config]:
        """The cheapest plan with these weights of transfers; where time is over before, the best by the present
        entries.

        sync, move   the weight of transfers that one Config decides, and of those between two nodes
        """
        while True:
            syncs = {key: sync * np.maximum(prices, 0) for key, prices in self.sync.items()}
            nodes = [((n,), WORK * work + syncs[self.own[n]]) for n, work in enumerate(self.work)]
            weighed = {key: move * table for key, table in self.moves.items()}
            pairs = [(scope, weighed[key]) for scope, key in zip(self.scopes, self.keys, strict=True)]
            point, _ = minimise([*nodes, *pairs], self.order)
            if not self._price(point) or self.spent():
                return {name: self.configs[n][point[n]] for n, name in enumerate(self.names)}

    def near(self, configs: Mapping[str, Config], group: Sequence[int]) -> list[tuple[Config, int]]:
        """The other Configs that all nodes of a group may have, and for each the plan's additional cost by the present
        entries, with transfers weighted as at first.
        """
        at = [self._numbers[n][configs[name]] for n, name in enumerate(self.names)]
        others = [config for config in self.configs[group[0]] if all(config in self._numbers[n] for n in group)]
        others = [config for config in others if any(self.configs[n][at[n]] != config for n in group)]
        to = {n: [self._numbers[n][config] for config in others] for n in group}
        (sync, move), more = WEIGHTS[0], np.zeros(len(others), np.int64)
        for n in group:
            own = WORK * self.work[n] + sync * np.maximum(self.sync[self.own[n]], 0)
            more += own[to[n]] - own[at[n]]
        for edge in {edge for n in group for edge in self._edges[n]}:
            (a, b), table = self.scopes[edge], self.moves[self.keys[edge]]
            more += move * (table[to.get(a, at[a]), to.get(b, at[b])] - table[at[a], at[b]])
        return list(zip(others, more.tolist(), strict=True))

    @cached_property
    def _numbers(self) -> list[dict[Config, int]]:
        """By node the number of each Config."""
        return [{config: n for n, config in enumerate(configs)} for configs in self.configs]

    @cached_property
    def _edges(self) -> list[list[int]]:
        """By node the numbers of its edges."""
        found: list[list[int]] = [[] for _ in self.names]
        for edge, (a, b) in enumerate(self.scopes):
            found[a].append(edge)
            found[b].append(edge)
        return found

    def _price(self, point: Sequence[int]) -> bool:
        """Compute the costs that a plan uses, as long as there is time: whether any was new."""
        news = False
        for name, key, configs, i in zip(self.names, self.own, self.configs, point, strict=True):
            if self.sync[key][i] < 0 and not (news and self.spent()):
                news, self.sync[key][i] = True, self.model.sync(name, configs[i])
        for number, (a, b) in enumerate(self.scopes):
            i, j = point[a], point[b]
            moves, known = self.moves[self.keys[number]], self.known[self.keys[number]]
            if known[i, j] or (news and self.spent()):
                continue
            news, bound = True, moves[i, j]
            self._set(number, i, j)
            if moves[i, j] < bound:
                # The price is below the bound, so no bound of this table is trusted.
                for i, j in takewhile(lambda _: not self.spent(), np.argwhere(~known).tolist()):
                    self._set(number, i, j)
        return news

    def _set(self, number: int, i: int, j: int) -> None:
        """Compute the cost of an edge."""
        (a, b), key = self.scopes[number], self.keys[number]
        self.moves[key][i, j] = self.model.move(self.model.edges[number], self.configs[a][i], self.configs[b][j])
        self.known[key][i, j] = True

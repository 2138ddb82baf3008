"""Contraction: groups of tasks of a graph become one task each; the others keep their order, edges and lanes.

It does not know what the tasks do, nor why they become one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from castile.planner.lowering.ragged import row_pointers, to_csr
from castile.runtime.task import TaskGraph

NO_PAIRS = np.empty((0, 2), np.int64)


class Contracted(NamedTuple):
    """A graph in which groups of tasks have become one.

    number[T]   the task of `graph` that each of the old tasks has become
    """

    graph: TaskGraph
    number: np.ndarray


@dataclass(frozen=True, eq=False)
class Contraction:
    """Each of `groups` of a graph's tasks as one task, in the place of the group's last; other tasks stay.

    Tasks of a group lie on the same lanes, and none depends on another one through tasks outside: the merged task would
    wait for itself.
    """

    old: TaskGraph
    groups: Sequence[Sequence[int]]

    @cached_property
    def stands(self) -> np.ndarray:
        """int64[T]: for each old task, the old number of the task in whose place it is now."""
        found = np.arange(self.old.num_tasks)
        for group in self.groups:
            found[list(group)] = group[-1]
        return found

    @cached_property
    def kept(self) -> np.ndarray:
        """The old number of each new task."""
        return np.flatnonzero(self._stands_for_itself)

    @cached_property
    def number(self) -> np.ndarray:
        """int64[T]: the new number of each old task."""
        return (np.cumsum(self._stands_for_itself) - 1)[self.stands]

    @cached_property
    def _stands_for_itself(self) -> np.ndarray:
        return self.stands == np.arange(self.old.num_tasks)

    def fields(self, turns: np.ndarray = NO_PAIRS) -> dict[str, Any]:
        """Kinds, order, lanes and edges of the new tasks; `turns` are further edges, rows of (before, after) in new
        numbers.
        """
        old, kept = self.old, self.kept
        after, before = np.repeat(self.number, np.diff(old.need_ptr)), self.number[old.needs]
        real = after != before
        after, before = np.append(after[real], turns[:, 1]), np.append(before[real], turns[:, 0])
        need_ptr, needs = to_csr(after, before, len(kept))
        counts = np.diff(old.lane_ptr)
        return {
            "kind": old.kind[kept],
            "order": old.order[kept],
            "lane_ptr": row_pointers(counts[kept]),
            "lanes": old.lanes[np.repeat(self._stands_for_itself, counts)],
            "need_ptr": need_ptr,
            "needs": needs,
        }

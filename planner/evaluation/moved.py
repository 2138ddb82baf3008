"""Moved: the bytes that transfers of a step bring from one processor to another.

It does not know how long that takes.
"""

from __future__ import annotations

import numpy as np

from castile.runtime.task import CostKey, TaskGraph


def moved_bytes(tasks: TaskGraph, count: np.ndarray | None = None) -> int:
    """The bytes that the transfers of a step bring from one processor to another; tasks may stand for `count` each."""
    counts = np.bincount(tasks.cost, count, len(tasks.cost_keys))
    return sum(int(count) * key_moves(key) for count, key in zip(counts, tasks.cost_keys, strict=True))


def key_moves(key: CostKey) -> int:
    """The bytes that one transfer of a cost key moves, over all its members; 0 for kernels.

    Of an all-to-all as if each had as much as the one that has most, and sent an equal part of it to each.
    """
    if not key.link:
        return 0
    rounds = 2 if key.name == "all_reduce" else 1
    return rounds * (key.members - 1) * key.nbytes

"""Traffic: the bytes that the transfers of a step move between processors.

It does not know how long that takes.
"""

from __future__ import annotations

import numpy as np

from castile.runtime.task import CostKey, TaskGraph


def moved_bytes(tasks: TaskGraph, count: np.ndarray | None = None) -> int:
    """The bytes that the transfers of a step move between processors; count[T]: how many tasks each stands for."""
    counts = np.bincount(tasks.cost, count, len(tasks.cost_keys))
    return sum(int(count) * key_moves(key) for count, key in zip(counts, tasks.cost_keys, strict=True))


def key_moves(key: CostKey) -> int:
    """The bytes that a transfer of this cost key moves, over all members; 0 for kernels.

    In an all-to-all each member counts as the one with most bytes, which sends an equal part to each.
    """
    if not key.link:
        return 0
    rounds = 2 if key.name == "all_reduce" else 1
    return rounds * (key.members - 1) * key.nbytes

"""Colours of tasks and processors: 64-bit hashes, alike for what nothing tells apart so far.

Two of n that differ are confused with a chance of about n squared / 2**65. They do not know what is coloured.
"""

from __future__ import annotations

import numpy as np


def mixed(*columns: np.ndarray) -> np.ndarray:
    """A hash of each row, by the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    state = np.full(len(columns[0]), 0x9E3779B97F4A7C15, np.uint64)
    for column in columns:
        state = (state ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


def sums(size: int, index: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """The colours summed by index: equal for equal multisets, wherever their members stand."""
    total = np.zeros(size, np.uint64)
    np.add.at(total, index, colours)
    return total


def distinct(values: np.ndarray) -> np.ndarray:
    """The numbers ascending, each once: by a sort, as numpy's `unique` hashes, ten times slower where most differ."""
    values = np.sort(values)
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]

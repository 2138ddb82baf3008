"""Colours for colour refinement: 64-bit hashes, equal for what is not distinguished so far.

Of n different items any two collide with a probability of about n squared / 2**65. It does not know what is coloured.
"""

from __future__ import annotations

import numpy as np

from castile.runtime.compiled import compiled


def mixed(*columns: np.ndarray) -> np.ndarray:
    """A hash of each row, by the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    state = np.full(len(columns[0]), 0x9E3779B97F4A7C15, np.uint64)
    stir = compiled(_stirred)
    # the arithmetic is modulo 2**64, of which the interpreter would warn
    with np.errstate(over="ignore"):
        for column in columns:
            stir(state, np.ascontiguousarray(column, np.uint64))
    return state


def _stirred(state, column):  # type: ignore[no-untyped-def]
    """Mix each entry of a column into the state, in place."""
    for n in range(len(state)):
        found = (state[n] ^ column[n]) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state[n] = found ^ (found >> np.uint64(31))


def sums(size: int, index: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """uint64[size]: the colours summed by index, a hash of each index's multiset of colours."""
    total = np.zeros(size, np.uint64)
    np.add.at(total, index, colours)
    return total


def distinct(values: np.ndarray) -> np.ndarray:
    """The distinct values, ascending: by sorting, which is ten times faster than numpy's hashing where most differ."""
    values = np.sort(values)
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]

"""Ragged rows in flat arrays, as in CSR matrices, and sequences whose items are made on demand.

It does not know what rows and items are about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from castile.runtime.compiled import compiled


class LazySequence(Sequence):
    """A sequence whose items are made when they are read."""

    def __init__(self, make: Callable, length: int) -> None:
        self._make, self._length = make, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        if not 0 <= number < self._length:
            raise IndexError(number)
        return self._make(int(number))


def row_pointers(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """int64[n + 1]: where each of n rows of `counts` entries begins, and the end of the last."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def ranges(first: np.ndarray, counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """int64[sum of the counts]: consecutive numbers from each `first`, `counts` of each, concatenated."""
    begin = row_pointers(counts)
    return np.repeat(first - begin[:-1], counts) + np.arange(begin[-1])


def first_seen_numbers(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[n], the number of each value in order of appearance; int64[numbers], where each appears first."""
    first, which = np.unique(values, return_index=True, return_inverse=True)[1:]
    order = np.argsort(first)
    number = np.empty(len(first), np.int64)
    number[order] = np.arange(len(first))
    return number[which], first[order]


def to_csr(rows: np.ndarray, values: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Entries by row, sorted and without duplicates: row pointers (int32[num_rows + 1]), and values (int32).

    rows, values   of each entry, none below 0, in any order
    """
    rows, values = (np.ascontiguousarray(of, np.int32) for of in (rows, values))
    begin, found = compiled(_to_csr)(rows, values, num_rows, int(values.max(initial=-1)) + 1)
    return begin, found[: begin[-1]]


def _to_csr(rows, values, num_rows, num_values):  # type: ignore[no-untyped-def]
    """The same, of values below `num_values`: sorted by value, then by row."""
    place, begin = np.zeros(num_values + 1, np.int32), np.zeros(num_rows + 1, np.int32)
    for k in range(len(values)):
        place[values[k] + 1] += 1
        begin[rows[k] + 1] += 1
    for v in range(num_values):
        place[v + 1] += place[v]
    for r in range(num_rows):
        begin[r + 1] += begin[r]
    by_value = np.empty(len(values), np.int32)
    for k in range(len(values)):
        by_value[place[values[k]]] = rows[k]
        place[values[k]] += 1
    end, found, k = begin.copy(), np.empty(len(values), np.int32), 0
    for v in range(num_values):
        while k < place[v]:
            r, k = by_value[k], k + 1
            if end[r] == begin[r] or found[end[r] - 1] < v:
                found[end[r]] = v
                end[r] += 1
    num_found = 0
    for r in range(num_rows):
        first, begin[r] = begin[r], num_found
        for k in range(first, end[r]):
            found[num_found] = found[k]
            num_found += 1
    begin[num_rows] = num_found
    return begin, found

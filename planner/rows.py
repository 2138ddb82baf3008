"""Rows in flat arrays: where each begins, what each holds, and sequences whose items are made when asked for.

It does not know what rows and items are about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


class Lazy(Sequence):
    """A sequence whose items are made when they are asked for."""

    def __init__(self, make: Callable, length: int) -> None:
        self._make, self._length = make, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        if not 0 <= number < self._length:
            raise IndexError(number)
        return self._make(int(number))


def pointer(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """int64[n + 1]: where each of n rows of so many entries begins, and the end of the last."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def compressed(rows: np.ndarray, values: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Entries by row, each once and in order: where rows begin (int64[num_rows + 1]), and their values.

    rows, values   of each entry, none below 0, in any order
    """
    bits = int(values.max(initial=0)).bit_length()
    pairs = rows << bits
    pairs |= values
    pairs.sort()
    pairs = pairs[np.append(pairs[:1] == pairs[:1], pairs[1:] != pairs[:-1])]
    return pointer(np.bincount(pairs >> bits, minlength=num_rows)), pairs & ((1 << bits) - 1)

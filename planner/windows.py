"""Windows that slide over an array dim: what a block of outputs sees of the array, and how much padding.

It does not know what is computed inside a window.
"""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]


def pair(value: int | Sequence[int]) -> Pair:
    """One number for rows and columns alike, or one for each."""
    if isinstance(value, int):
        return value, value
    rows, columns = value
    return rows, columns


def count(length: int, kernel: int, stride: int, padding: int) -> int:
    """How many windows fit on a padded dim. Raises ValueError where one could see only padding, or where none fits."""
    if stride < 1:
        raise ValueError(f"a stride of {stride} does not move: it should be at least 1")
    if not 0 <= padding < kernel:
        raise ValueError(f"padding {padding} should be at least 0 and smaller than the kernel, {kernel}")
    windows = (length + 2 * padding - kernel) // stride + 1
    if windows < 1:
        raise ValueError(f"a kernel of {kernel} does not fit {length} elements with padding {padding}")
    return windows


def window(block: Pair, length: int, kernel: int, stride: int, padding: int) -> tuple[Pair, Pair]:
    """What a block of outputs sees of a dim: (lo, hi) inside the array, and the padding before and after it."""
    lo = block[0] * stride - padding
    hi = (block[1] - 1) * stride - padding + kernel
    return (max(lo, 0), min(hi, length)), (max(-lo, 0), max(hi - length, 0))


def pads(rows: tuple[Pair, Pair], columns: tuple[Pair, Pair]) -> Pads:
    """(top, bottom, left, right) of two windows."""
    return (*rows[1], *columns[1])

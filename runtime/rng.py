"""Random numbers by place: each element of a named array has its own number, whoever draws it and in whatever order.

It does not know what the numbers are for.

The stream: NumPy's Philox 4x64-10 (Salmon et al., 2011) with the key (seed, hash of the name); elements e = 4c to 4c+3
in row-major order are the four words of counter c; c stands in the first word of the counter, `step` in the third.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import prod

import numpy as np

from castile.runtime.region import Box, whole

WORDS = 4


def uniform(seed: int, name: str, shape: Sequence[int], box: Box | None = None, step: int = 0) -> np.ndarray:
    """Float64 numbers in 0 <= u < 1 for the elements of `box` (all by default) of the array `name` of `shape`."""
    return (_words(seed, name, shape, box, step) >> np.uint64(11)) * 2.0**-53


def normal(seed: int, name: str, shape: Sequence[int], box: Box | None = None, step: int = 0) -> np.ndarray:
    """Standard normal float64 numbers for the elements of `box`, by the inverse distribution, on the host only."""
    # slow to import, and planning draws no numbers
    from scipy.special import ndtri

    return ndtri(((_words(seed, name, shape, box, step) >> np.uint64(11)) + 0.5) * 2.0**-53)


def number(seed: int, name: str, step: int = 0) -> int:
    """A number in 0 <= n < 2^63."""
    return int(_words(seed, name, (), None, step)) >> 1


def permutation(seed: int, name: str, n: int, epoch: int = 0) -> np.ndarray:
    """The numbers 0 to n - 1 in an order of their own for each name and epoch; int64."""
    return np.argsort(_words(seed, name, (n,), None, epoch), kind="stable")


def _words(seed: int, name: str, shape: Sequence[int], box: Box | None, step: int) -> np.ndarray:
    """64 random bits for each element of the box."""
    if not 0 <= seed < 2**64:
        raise ValueError(f"a seed is a number from 0 to 2^64 - 1, got {seed}")
    box = whole(shape) if box is None else box
    if not shape:
        return _run(seed, name, 0, 1, step).reshape(())
    # one unbroken run covers the box's range of the first dim; what the box lacks of the other dims is thrown away
    inner = prod(shape[1:])
    lo, hi = box.lo[0], box.hi[0]
    slab = _run(seed, name, lo * inner, (hi - lo) * inner, step).reshape(hi - lo, *shape[1:])
    return slab[(slice(None), *(slice(l, h) for l, h in zip(box.lo[1:], box.hi[1:], strict=True)))]


def _run(seed: int, name: str, start: int, length: int, step: int) -> np.ndarray:
    counter, skip = divmod(start, WORDS)
    philox = np.random.Philox(
        key=np.array([seed, _hash(name)], np.uint64), counter=np.array([counter, 0, step, 0], np.uint64)
    )
    return philox.random_raw(skip + length)[skip:]


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")

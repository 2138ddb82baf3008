"""Many parts of a node at once: ranges that are arrays, with an entry for each part.

Operators tell boxes and flops by arithmetic, which arrays do as well as numbers; those that look at single numbers
refuse arrays, and are asked for one part after the other. It does not know nodes, layouts or prices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

# By axis how often it is cut: a degree, or one for each of many splits.
Cut = Mapping[str, Any]
# Where blocks begin and end.
Pairs = tuple[np.ndarray, np.ndarray]
Answer = TypeVar("Answer")


def over_arrays(what: Callable[[], Answer]) -> Answer | None:
    """What an operator says of a part whose ranges are arrays; None where it takes numbers only."""
    try:
        return what()
    except (TypeError, ValueError):
        return None


@lru_cache(maxsize=1024)
def all_blocks(extent: int, degrees: Sequence[int]) -> Pairs:
    """int64[sum of the degrees] each: where the blocks of an axis begin and end, one degree after the other."""
    bounds = [-(-np.arange(degree + 1) * extent // degree) for degree in degrees]
    return np.concatenate([b[:-1] for b in bounds]), np.concatenate([b[1:] for b in bounds])


@lru_cache(maxsize=1024)
def in_turn(cuts: tuple[tuple[int, tuple[int, ...]], ...]) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Blocks of axes, each of an extent and with its degrees, where one after the other is cut and all others are
    whole: int64[axes, sum of all degrees] each, where they begin and end; and where each axis's own blocks end.
    """
    own = [all_blocks(extent, degrees) for extent, degrees in cuts]
    ends = tuple(accumulate(len(lo) for lo, _ in own))
    los, his = np.zeros((len(cuts), ends[-1]), np.int64), np.zeros((len(cuts), ends[-1]), np.int64)
    for n, ((extent, _), (lo, hi), end) in enumerate(zip(cuts, own, ends, strict=True)):
        his[n] = extent
        los[n, end - len(lo) : end], his[n, end - len(hi) : end] = lo, hi
    return los, his, ends

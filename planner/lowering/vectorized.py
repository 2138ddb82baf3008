"""Calls operators' hooks for many parts of a node at once: ranges become arrays with an entry for each part.

Hooks that compute boxes and flops by arithmetic work on arrays too; those that look at single numbers refuse arrays,
and are called part by part. It does not know nodes, layouts or costs.
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


def call_vectorized(what: Callable[[], Answer]) -> Answer | None:
    """What an operator returns for a part whose ranges are arrays; None where it takes numbers only."""
    try:
        return what()
    except (TypeError, ValueError):
        return None


@lru_cache(maxsize=1024)
def all_blocks(extent: int, degrees: Sequence[int]) -> Pairs:
    """int64[sum of the degrees] each: the begins and ends of the blocks of an axis, one degree after the other."""
    bounds = [-(-np.arange(degree + 1) * extent // degree) for degree in degrees]
    return np.concatenate([b[:-1] for b in bounds]), np.concatenate([b[1:] for b in bounds])


@lru_cache(maxsize=1024)
def one_axis_at_a_time(cuts: tuple[tuple[int, tuple[int, ...]], ...]) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Blocks of axes, given as (extent, degrees), where one axis after the other is cut and all others are whole:
    int64[axes, sum of all degrees] each, their begins and ends; and where each axis's own blocks end.
    """
    own = [all_blocks(extent, degrees) for extent, degrees in cuts]
    ends = tuple(accumulate(len(lo) for lo, _ in own))
    los, his = np.zeros((len(cuts), ends[-1]), np.int64), np.zeros((len(cuts), ends[-1]), np.int64)
    for n, ((extent, _), (lo, hi), end) in enumerate(zip(cuts, own, ends, strict=True)):
        his[n] = extent
        los[n, end - len(lo) : end], his[n, end - len(hi) : end] = lo, hi
    return los, his, ends

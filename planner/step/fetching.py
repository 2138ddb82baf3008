"""Fetching: when parameters are fetched that are not kept from one pass to another, nor from step to step.

It does not know who reads them, where they lie, nor what takes how long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# What is fetched and not yet read, beside other passes' kernels, is this share of all parameters that are not kept, and
# one of them, at most.
AHEAD = 1 / 32


def in_time(reads: Sequence[Sequence[str]], sizes: Mapping[str, int]) -> list[list[str]]:
    """For each of some passes in a row which parameters are fetched before it, given those that it reads: each once, so
    early that all that are read before it and were not yet are little.
    """
    first: dict[str, int] = {}
    for number, params in enumerate(reads):
        for param in params:
            first.setdefault(param, number)
    found: list[list[str]] = [[] for _ in reads]
    order, begin, ahead = list(first), 0, 0
    for param in order:
        while ahead > AHEAD * sum(sizes.values()):
            ahead -= sizes[order[begin]]
            begin += 1
        free = first[order[begin - 1]] + 1 if begin else 0
        found[min(free, first[param])].append(param)
        ahead += sizes[param]
    return found

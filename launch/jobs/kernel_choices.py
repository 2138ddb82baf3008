"""Choices for kernel calls, as the profile database holds them: the fastest that were timed are used.

It does not know what the calls are, nor how they were timed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from importlib import import_module

from castile.planner.costs.database import Way


def apply_choices(ways: Iterable[Way]) -> None:
    """Let this process run each call by the fastest of these choices from now on."""
    if found := by_call(ways):
        # Whoever only plans has none, and need not have the kernels.
        tuning = import_module("castile.kernels.tuning")
        tuning.remember_all({call: tuning.Choice(timed[0].form, timed[0].setting) for call, timed in found.items()})


def by_call(ways: Iterable[Way]) -> dict[str, tuple[Way, ...]]:
    """The choices of each call, the fastest first."""
    found: dict[str, list[Way]] = defaultdict(list)
    for way in ways:
        found[way.call].append(way)
    return {call: tuple(sorted(timed, key=lambda way: way.seconds)) for call, timed in found.items()}

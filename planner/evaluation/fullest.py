"""Fullest: who owns what when most lives on a processor, of a step that is looked at stretch by stretch.

It does not know when that is counted, nor who asks.
"""

from __future__ import annotations

import numpy as np

from castile.planner.evaluation.seen import Seen
from castile.planner.simulation.agenda import NEVER
from castile.planner.simulation.window import Stretch
from castile.runtime import memory
from castile.runtime.timeline import Timeline

Owners = list[tuple[str, int]]


class Fullest:
    """Of each of the C processors that are written out the owners of what lives there when most does."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._owners: list[Owners] = [[] for _ in range(seen.tasks.num_procs)]
        self._most = np.full(len(self._owners), -1)

    @property
    def owners(self) -> list[Owners]:
        """Theirs by region or task, the largest first, as `memory.largest` tells them; what is given to microbatches
        that are not written out is one.
        """
        lasting, reps = self._seen.lasting(memory.ALIGNMENT), self._seen.folded.representative.tolist()
        others = f"of {self._seen.num_left} more microbatches"
        more = {f"{region.partition('@')[0]} {others}": held for region, held in lasting.items()}
        return [
            sorted([*owners, *((name, int(held[rep])) for name, held in more.items() if held[rep])], key=_largest_first)
            for rep, owners in zip(reps, self._owners, strict=True)
        ]

    def enter(self, stretch: Stretch) -> None:
        """Looks at those that are fuller than they were before the stretch."""
        fuller = np.flatnonzero(stretch.peak_bytes > self._most)
        if not len(fuller):
            return
        # What begins later, of which not all is known, comes when all else has gone; what it will read lives till then.
        has_begun = (stretch.end < NEVER) & (stretch.start < stretch.until)
        late = int(stretch.end[has_begun].max(initial=0)) + 1
        start, end = (np.where(has_begun, each, late) for each in (stretch.start, stretch.end))
        timeline = Timeline(np.arange(len(start)), start, end)
        found = memory.largest(self._seen.written.later(stretch.later), timeline, fuller.tolist())
        for proc, owners in zip(fuller.tolist(), found, strict=True):
            nbytes = sum(size for _, size in owners)
            if nbytes > self._most[proc]:
                self._owners[proc], self._most[proc] = owners, nbytes


def _largest_first(owner: tuple[str, int]) -> tuple[int, str]:
    return -owner[1], owner[0]

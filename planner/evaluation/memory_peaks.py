"""Memory peaks: which regions and tasks own the bytes alive at each processor's peak, found stretch by stretch.

It does not know how a step is simulated, nor what the owners are for.
"""

from __future__ import annotations

import numpy as np

from castile.planner.evaluation.simulated_step import SimulatedStep
from castile.planner.simulation.agenda import NEVER
from castile.planner.simulation.window import Stretch
from castile.runtime import memory
from castile.runtime.timeline import Timeline

Owners = list[tuple[str, int]]


class PeakOwners:
    """The owners of the bytes alive at the peak of each of the C simulated processors."""

    def __init__(self, step: SimulatedStep) -> None:
        self._step = step
        self._owners: list[Owners] = [[] for _ in range(step.tasks.num_procs)]
        self._most = np.full(len(self._owners), -1)

    @property
    def owners(self) -> list[Owners]:
        """By processor, (owner, bytes), largest first, as of `memory.largest`. The inputs of microbatches that are not
        written out are one owner for each region.
        """
        lasting, reps = self._step.lasting(memory.ALIGNMENT), self._step.folded.representative.tolist()
        others = f"of {self._step.num_left} more microbatches"
        more = {f"{region.partition('@')[0]} {others}": held for region, held in lasting.items()}
        return [
            sorted([*owners, *((name, int(held[rep])) for name, held in more.items() if held[rep])], key=_largest_first)
            for rep, owners in zip(reps, self._owners, strict=True)
        ]

    def enter(self, stretch: Stretch) -> None:
        """Take a stretch into account, for the processors with a new peak in it."""
        fuller = np.flatnonzero(stretch.peak_bytes > self._most)
        if not len(fuller):
            return
        # Tasks that begin after the stretch are moved behind its end, so that their inputs are alive until then.
        has_begun = (stretch.end < NEVER) & (stretch.start < stretch.until)
        late = int(stretch.end[has_begun].max(initial=0)) + 1
        start, end = (np.where(has_begun, each, late) for each in (stretch.start, stretch.end))
        timeline = Timeline(np.arange(len(start)), start, end)
        found = memory.largest(self._step.written.later(stretch.later), timeline, fuller.tolist())
        for proc, owners in zip(fuller.tolist(), found, strict=True):
            nbytes = sum(size for _, size in owners)
            if nbytes > self._most[proc]:
                self._owners[proc], self._most[proc] = owners, nbytes


def _largest_first(owner: tuple[str, int]) -> tuple[int, str]:
    return -owner[1], owner[0]

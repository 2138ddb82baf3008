"""Templates of region versions: one analysis for all with the same layouts, whatever their names and processors.

Processors are renamed to slots in the order in which they appear; what the links between them are like is part of the
template's key. It does not know passes or operators.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from math import inf
from typing import NamedTuple

import numpy as np

from castile.planner.program import Flow
from castile.planner.strategy import Config
from castile.runtime import collectives
from castile.runtime.dependence import Contribution, Version, everywhere, in_place, links, version
from castile.runtime.machine import Machine
from castile.runtime.region import Box, disjoint
from castile.runtime.transfer import Links


class Placed(NamedTuple):
    """A layout: its identity, the boxes by part (None: not touched), and the Config that places the parts."""

    layout: Hashable
    boxes: tuple[Box | None, ...]
    config: Config


class Versions:
    """The versions analysed so far on one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._made: dict[Hashable, Version] = {}
        self._placed: dict[Hashable, tuple[Version, tuple[int, ...]]] = {}
        self._boxes: dict[tuple[Box | None, ...], tuple[int, bool]] = {}
        self._layouts: dict[Hashable, tuple[int, bool]] = {}
        self._among: dict[tuple[int, ...], tuple[Links, Hashable]] = {}

    def get(
        self, flow: Flow, made: Sequence[Placed], read: Sequence[Placed], most: float = inf
    ) -> tuple[Version, tuple[int, ...]]:
        """The analysis of a flow between these layouts, and the processor of each of its slots.

        Raises TooManyTransfers where it takes more than `most`.
        """
        together = tuple([len(list(ports)) for _, ports in groupby(slot for slot, _ in flow.producers)]) or (len(made),)
        layouts = tuple([(self._layout(p)[0], p.config) for p in (*made, *read)])
        key = (together, layouts, flow.dtype, flow.role, bool(flow.overwriters))
        if key not in self._placed:
            self._placed[key] = self._get(flow, made, read, together, most)
        return self._placed[key]

    def _get(
        self, flow: Flow, made: Sequence[Placed], read: Sequence[Placed], together: tuple[int, ...], most: float
    ) -> tuple[Version, tuple[int, ...]]:
        slots: dict[int, int] = {}
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        renamed = []
        for p in (*made, *read):
            of = _touching(p)
            if of not in known:
                fresh = [proc for proc in dict.fromkeys(of) if proc not in slots]
                slots.update({proc: slot for slot, proc in enumerate(fresh, len(slots))})
                known[of] = tuple(map(slots.__getitem__, of))
            renamed.append((self._layout(p)[0], p.config.replicas, known[of]))
        procs = tuple(slots)
        among, apart = self._links(procs)
        carried, overwritten = flow.role in ("carried", "input"), bool(flow.overwriters)
        key = (together, tuple(renamed), flow.dtype, flow.role, overwritten, apart)
        if key not in self._made:
            held = _held(made[0], slots) if len(made) == 1 and self._layout(made[0])[1] else None
            there = zip(read, renamed[len(made) :]) if held is not None else ()
            wanted = [held if of == renamed[0] else _held(p, slots) for p, of in there]
            if held is not None and all(each == held for each in wanted if each):
                self._made[key] = in_place(held, sum(map(bool, wanted)), carried, overwritten)
            elif flow.role == "input" and (box := _one_box(read, renamed)) is not None:
                self._made[key] = everywhere(box, len(procs), _joined([of for _, _, of in renamed]))
            else:
                self._made[key] = _analysed(flow, made, read, together, slots, among, carried, overwritten, most)
        return self._made[key], procs

    def _layout(self, placed: Placed) -> tuple[int, bool]:
        """The number of a layout, the same for equal boxes, and whether all parts have one and no two overlap."""
        # To hash many boxes takes long: once for each identity.
        found = self._layouts.get(placed.layout)
        if found is None:
            found = self._boxes.get(placed.boxes)
            if found is None:
                boxes = [box for box in placed.boxes if box is not None and box.volume]
                alone = len(boxes) == len(placed.boxes) and disjoint(boxes)
                found = self._boxes[placed.boxes] = len(self._boxes), alone
            self._layouts[placed.layout] = found
        return found

    def _links(self, procs: tuple[int, ...]) -> tuple[Links, Hashable]:
        """What joins these processors, and how far they are from each other: their groups at each level, renamed."""
        if procs not in self._among:
            levels = []
            for level in self._machine.levels if len(procs) > 1 else ():
                groups: dict[int, int] = {}
                levels.append(tuple([groups.setdefault(p // level.group, len(groups)) for p in procs]))
            known = links(self._machine, procs)
            self._among[procs] = replace(known, level=cache(known.level)), tuple(levels)
        return self._among[procs]


def _one_box(read: Sequence[Placed], renamed: Sequence[tuple[int, int, tuple[int, ...]]]) -> Box | None:
    """The box that all of them read, if it is one; `renamed`: the number of each one's layout and more."""
    layouts = {of[0]: p.boxes for p, of in zip(read, renamed, strict=True)}
    boxes = {box for each in layouts.values() for box in each}
    box = boxes.pop() if len(boxes) == 1 else None
    return box if box is not None and box.volume else None


def _joined(slots: Sequence[tuple[int, ...]]) -> np.ndarray:
    """All of them end to end; many are one object."""
    arrays = {id(each): np.array(each, np.int64) for each in slots}
    return np.concatenate([arrays[id(each)] for each in slots])


def _analysed(
    flow: Flow, made: Sequence[Placed], read: Sequence[Placed], together: tuple[int, ...], slots: dict[int, int],
    among: Links, carried: bool, overwritten: bool, most: float,
) -> Version:  # fmt: skip
    rows = [row for number, p in enumerate(read) for row in _readers(p, slots, number)]
    readers, twins = [row[:2] for row in rows], [row[2] for row in rows]
    contributions = _contributions(made, together, slots)
    if flow.role == "input":
        contributions = [Contribution(box, (slot,)) for slot, box in collectives.filled(readers, twins)]
    is_input = flow.role == "input"
    return version(contributions, readers, flow.dtype, among, carried, overwritten, is_input, twins=twins, most=most)


def _each(placed: Placed) -> list[tuple[int, Box, tuple[int, ...]]]:
    """The number of each touched part, its box and the processors of its replicas."""
    boxes, config = placed.boxes, placed.config
    r = config.replicas
    return [(n, box, config.procs[n * r : (n + 1) * r]) for n, box in enumerate(boxes) if box is not None]


def _touching(placed: Placed) -> tuple[int, ...]:
    """The processors of all parts that touch it."""
    if None not in placed.boxes:
        return placed.config.procs
    return tuple([proc for _, _, procs in _each(placed) for proc in procs])


def _held(placed: Placed, slots: dict[int, int]) -> list[tuple[int, Box]]:
    """Where each part and replica touches what, in their order."""
    return [(slots[proc], box) for _, box, procs in _each(placed) for proc in procs]


def _contributions(made: Sequence[Placed], together: Sequence[int], slots: dict[int, int]) -> list[Contribution]:
    """In program order: a step that makes the region through several ports (so many together) does so part by part."""
    contributions, ports = [], iter(made)
    for count in together:
        rows = [(part, port, box, procs) for port in range(count) for part, box, procs in _each(next(ports))]
        for _, _, box, procs in sorted(rows, key=lambda row: row[:2]):
            contributions.append(Contribution(box, tuple(slots[p] for p in procs)))
    return contributions


def _readers(placed: Placed, slots: dict[int, int], number: int) -> list[tuple[int, Box, tuple[int, int]]]:
    """Slot, box, and what replicas have in common."""
    return [(slots[p], box, (number, part)) for part, box, procs in _each(placed) for p in procs]

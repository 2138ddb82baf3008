"""Region versions, analysed once for all with the same layouts, whatever they are called and wherever they lie.

A version is what a region holds between being written and being overwritten. To analyse it once for all layers and
replicas, its processors are renamed to slots 0, 1, ... in order of appearance; the links between them (their groups on
each level) are part of the key. It does not know passes or operators.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, compress, groupby, islice
from math import inf
from operator import itemgetter

import msgspec
import numpy as np

from castile.planner.step.program import Flow
from castile.planner.strategy import Config
from castile.runtime.dependence import Version, everywhere, filled, in_place, links, version
from castile.runtime.machine import Machine
from castile.runtime.region import Box, disjoint, whole
from castile.runtime.transfer import Links, Source

Procs = tuple[int, ...]


class Placed(msgspec.Struct, frozen=True, eq=False):
    """A layout on processors: the box of each part (None: it touches nothing), and the Config that places the parts.
    Equal ones are one object.

    layout     a number, equal for equal boxes
    touching   the processors of all parts that touch the region, replica by replica
    touched    the box that each of these touches
    tasks      the tasks that do, by number among the tasks of all parts and replicas
    """

    layout: int
    boxes: tuple[Box | None, ...]
    config: Config
    touching: tuple[int, ...]
    touched: tuple[Box, ...]
    tasks: np.ndarray


class Versions:
    """The versions analysed so far on one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._made: dict[Hashable, Version] = {}
        self._known: dict[Hashable, tuple[Version, tuple[int, ...]]] = {}
        self._placed: dict[tuple[int, Config], Placed] = {}
        self._boxes: dict[tuple[Box | None, ...], int] = {}
        # by id, with the object, so that no other gets that id: many ask with one and the same object
        self._numbers: dict[int, tuple[tuple[Box | None, ...], int]] = {}
        self._apart: dict[int, bool] = {}
        self._tasks: dict[tuple[bool, ...], np.ndarray] = {}
        self._slots: dict[tuple[Procs, ...], tuple[Procs, tuple[Procs, ...]]] = {}
        self._among: dict[tuple[int, ...], tuple[Links, Hashable]] = {}

    def placed(self, boxes: tuple[Box | None, ...], config: Config, are_apart: bool = False) -> Placed:
        """The layout with these boxes by part under this Config.

        are_apart   whether it is known that all parts have a box and all are disjoint
        """
        if id(boxes) not in self._numbers:
            self._numbers[id(boxes)] = boxes, self._boxes.setdefault(boxes, len(self._boxes))
        number = self._numbers[id(boxes)][1]
        if are_apart:
            self._apart[number] = True
        key = number, config
        if key not in self._placed:
            r = config.replicas
            every = boxes if r == 1 else tuple([box for box in boxes for _ in range(r)])
            are_touched = tuple([box is not None for box in every])
            if are_touched not in self._tasks:
                self._tasks[are_touched] = np.flatnonzero(are_touched)
            procs, touched = tuple(compress(config.procs, are_touched)), tuple(filter(None, every))
            self._placed[key] = Placed(number, boxes, config, procs, touched, self._tasks[are_touched])
        return self._placed[key]

    def on_host(self, shape: tuple[int, ...]) -> Placed:
        """A whole array as the host reads it: from processor 0."""
        return self.placed((whole(shape),), Config())

    def get(
        self, flow: Flow, made: Sequence[Placed], read: Sequence[Placed], most: float = inf
    ) -> tuple[Version, tuple[int, ...]]:
        """(the analysis of a flow between these layouts, the processor of each of its slots)

        Raises TooManyTransfers where it takes more than `most`.
        """
        together = tuple([len(list(ports)) for _, ports in groupby(slot for slot, _ in flow.producers)]) or (len(made),)
        key = (together, *made, *read, flow.dtype, flow.role, bool(flow.overwriters))
        if key not in self._known:
            self._known[key] = self._get(flow, made, read, together, most)
        return self._known[key]

    def _get(
        self, flow: Flow, made: Sequence[Placed], read: Sequence[Placed], together: tuple[int, ...], most: float
    ) -> tuple[Version, tuple[int, ...]]:
        every = (*made, *read)
        procs, of_ports = self._renamed(tuple([p.touching for p in every]))
        among, apart = self._links(procs)
        carried, overwritten = flow.role == "carried", bool(flow.overwriters)
        # the number of replicas need not be in the key: it follows from the boxes and the slots that touch them
        layouts = tuple([p.layout for p in every])
        key = (together, layouts, of_ports, flow.dtype, flow.role, overwritten, apart)
        if key not in self._made:
            seen = [p for p in read if p.touching]
            if len(made) == 1 and all([_have_same_layout(p, made[0]) for p in seen]) and self._is_apart(made[0]):
                held = list(zip(of_ports[0], made[0].touched, strict=True))
                self._made[key] = in_place(held, len(seen), carried, overwritten)
            elif flow.role == "input" and (box := _one_box(read)) is not None:
                self._made[key] = everywhere(box, len(procs), _joined(of_ports))
            else:
                self._made[key] = _analysed(flow, made, read, together, of_ports, among, carried, overwritten, most)
        return self._made[key], procs

    def _renamed(self, touching: tuple[Procs, ...]) -> tuple[Procs, tuple[Procs, ...]]:
        """(the processor of each slot, the slots of each layout), given the processors that touch each layout."""
        if touching not in self._slots:
            # many layouts are touched by the same processors
            different = dict.fromkeys(touching)
            every = tuple(dict.fromkeys(chain.from_iterable(different)))
            slots = dict(zip(every, range(len(every))))
            renamed = {procs: tuple(map(slots.__getitem__, procs)) for procs in different}
            self._slots[touching] = every, tuple(map(renamed.__getitem__, touching))
        return self._slots[touching]

    def _is_apart(self, placed: Placed) -> bool:
        """Whether all parts have a box and all are disjoint."""
        if placed.layout not in self._apart:
            full = [box for box in placed.boxes if box is not None and box.volume]
            # All summands have one box, which need not be compared with itself.
            differ = len({*full}) == len(placed.boxes)
            self._apart[placed.layout] = differ and disjoint(full)
        return self._apart[placed.layout]

    def _links(self, procs: tuple[int, ...]) -> tuple[Links, Hashable]:
        """(the links between these processors, their distances): the latter as their groups on each level, renamed."""
        if procs not in self._among:
            levels = []
            for level in self._machine.levels if len(procs) > 1 else ():
                groups: dict[int, int] = {}
                levels.append(tuple([groups.setdefault(p // level.group, len(groups)) for p in procs]))
            known = links(self._machine, procs)
            self._among[procs] = replace(known, level=cache(known.level)), tuple(levels)
        return self._among[procs]


def _one_box(read: Sequence[Placed]) -> Box | None:
    """The box that all of them read, if they all read the same."""
    layouts = {p.layout: p.boxes for p in read}
    boxes = {box for each in layouts.values() for box in each}
    return boxes.pop() if len(boxes) == 1 else None


def _joined(slots: Sequence[tuple[int, ...]]) -> np.ndarray:
    """All of them concatenated. Many are one and the same object."""
    arrays = {id(each): np.array(each, np.int64) for each in slots}
    return np.concatenate([arrays[id(each)] for each in slots])


def _analysed(
    flow: Flow, made: Sequence[Placed], read: Sequence[Placed], together: tuple[int, ...],
    slots: Sequence[tuple[int, ...]], among: Links, carried: bool, overwritten: bool, most: float,
) -> Version:  # fmt: skip
    """The version, by `runtime.dependence`; slots: of each of `made`, then of `read`, those of all that touch it."""
    readers = [row for p, of in zip(read, slots[len(made) :], strict=True) for row in zip(of, p.touched, strict=True)]
    # Without replicas each would be its own twin.
    twins = [twin for number, p in enumerate(read) for twin in _replica_keys(p, number)] if _are_replicas(read) else ()
    if flow.role == "input":
        return filled(readers, twins)
    contributions = _contributions(made, together, slots)
    return version(contributions, readers, flow.dtype, among, carried, overwritten, twins=twins, most=most)


def _have_same_layout(one: Placed, other: Placed) -> bool:
    """Whether the same boxes lie on the same processors, in one order."""
    if one is other or one.touching != other.touching:
        return one is other
    return one.layout == other.layout or one.touched == other.touched


def _contributions(
    made: Sequence[Placed], together: Sequence[int], slots: Sequence[tuple[int, ...]]
) -> list[Source]:
    """What is written, in the order of the program: a pass that writes the region through several ports (`together` of
    them) does so part by part.
    """
    contributions, ports = [], zip(made, slots)
    for count in together:
        rows = [row for p, of in islice(ports, count) for row in _parts(p, of)]
        if count > 1:
            rows.sort(key=itemgetter(0))
        contributions += [contribution for _, contribution in rows]
    return contributions


def _parts(placed: Placed, slots: tuple[int, ...]) -> list[tuple[int, Source]]:
    """For each part that touches the region, its number, its box and the slots of its replicas."""
    r = placed.config.replicas
    each = [(n, box) for n, box in enumerate(placed.boxes) if box is not None]
    return [(n, Source(box, slots[k * r : (k + 1) * r])) for k, (n, box) in enumerate(each)]


def _are_replicas(placed: Sequence[Placed]) -> bool:
    return any([p.config.replicas > 1 for p in placed])


def _replica_keys(placed: Placed, number: int) -> list[tuple[int, int]]:
    """For each task that touches it a key, equal for replicas of one part."""
    return [(number, task // placed.config.replicas) for task in placed.tasks.tolist()]

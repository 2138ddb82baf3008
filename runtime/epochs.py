"""Epochs: the versions of each region, in program order: who writes, adds to and reads each.

It does not know the links between processors, nor how bytes get from a version's writers to its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from castile.runtime.dependence import complete
from castile.runtime.region import Box, Region, intersect, uncovered, whole
from castile.runtime.task import Body, CostKey, Use

Home = tuple[int, Box]  # a processor, and the box of a region that it keeps from period to period


@dataclass(frozen=True)
class Access:
    """A box of a region and how a launch touches it. A body writes what REDUCE then adds."""

    region: str
    box: Box
    use: Use


@dataclass(frozen=True)
class Launch:
    """Work for each of `procs`: several are replicas, of which a sum counts one.

    body   the kernel calls, whose views are the accesses in order; where launches add to one box on the same
           processors, a function from `adds`, adds[j] saying whether access j is added to what is there
    key    its cost key
    """

    name: str
    procs: tuple[int, ...]
    accesses: tuple[Access, ...]
    body: Body | Callable[[tuple[bool, ...]], Body]
    key: CostKey


Port = tuple[int, int]  # the numbers of a launch and of one of its accesses


@dataclass
class Epoch:
    """One version of a region: who writes it or adds to it, then who reads it; `held` if it is there beforehand."""

    region: Region
    held: bool = False
    writes: list[tuple[Port, Box]] = field(default_factory=list)
    sums: list[tuple[Port, Box]] = field(default_factory=list)
    reads: list[tuple[Port, Box]] = field(default_factory=list)

    @property
    def made(self) -> list[tuple[Port, Box]]:
        """All contributions in program order."""
        return sorted([*self.writes, *self.sums], key=lambda made: made[0])

    def holds(self, box: Box) -> bool:
        """Whether all of a box has a value: a sum to which nobody adds is zero."""
        return self.held or bool(self.sums) or not uncovered(box, [b for _, b in self.writes])

    def begun(self, box: Box) -> bool:
        """Whether part of a box was written or added to."""
        return self.held or any(intersect(b, box) for _, b in self.made)


def epochs(launches: Sequence[Launch], regions: Mapping[str, Region], held: set[str]) -> dict[str, list[Epoch]]:
    """The versions of every region in order. Regions in `held` have a value before the first launch.

    Raises ValueError, naming launch and box, where a launch reads what nobody wrote, adds to a version that was read,
    or writes a box twice that was not read between, and where the writes of a version do not cover the region.
    """
    found = {name: [Epoch(region, True)] if name in held else [] for name, region in regions.items()}
    for number, launch in enumerate(launches):
        _check(launch, regions)
        # a launch reads before it writes
        for wanted in (Use.READ, Use.REDUCE, Use.WRITE):
            for place, access in enumerate(launch.accesses):
                if access.use == wanted:
                    versions, region = found[access.region], regions[access.region]
                    _ENTER[wanted](versions, region, launch.name, (number, place), access.box)
    for name, versions in found.items():
        for version in versions:
            if version.writes:
                complete(regions[name].shape, [box for _, box in version.writes], f"region {name!r} is written in part")
    return found


def _check(launch: Launch, regions: Mapping[str, Region]) -> None:
    for access in launch.accesses:
        if access.region not in regions:
            raise ValueError(f"launch {launch.name!r} touches {access.region!r}, which is no region of this program")
        frame = whole(regions[access.region].shape)
        if len(access.box.lo) != len(frame.lo) or uncovered(access.box, [frame]):
            raise ValueError(f"launch {launch.name!r} touches {access.region!r} {access.box}, its box is {frame}")


def _read(versions: list[Epoch], region: Region, who: str, port: Port, box: Box) -> None:
    reached = [v for v in versions if v.begun(box) or v.sums]
    if not reached or not reached[-1].holds(box):
        raise ValueError(
            f"launch {who!r} reads {region.name!r} {box}, which nobody has written before it: "
            "write it, or let it have a home or be an input"
        )
    reached[-1].reads.append((port, box))


def _write(versions: list[Epoch], region: Region, who: str, port: Port, box: Box) -> None:
    if not versions or versions[-1].reads or versions[-1].held:
        versions.append(Epoch(region))
    if versions[-1].begun(box):
        raise ValueError(f"launch {who!r} writes {region.name!r} {box}, which is written twice with nobody reading it")
    versions[-1].writes.append((port, box))


def _add(versions: list[Epoch], region: Region, who: str, port: Port, box: Box) -> None:
    if versions and (versions[-1].reads or versions[-1].held):
        raise ValueError(f"launch {who!r} adds to {region.name!r} {box}, which holds something else: write it first")
    if not versions:
        versions.append(Epoch(region))
    versions[-1].sums.append((port, box))


_ENTER = {Use.READ: _read, Use.WRITE: _write, Use.REDUCE: _add}

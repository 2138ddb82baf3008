"""Layouts: which rank writes which boxes, when every rank has told which it holds.

It does not know files. Several ranks may hold copies of a box: the lowest of them writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from castile.launch.checkpoints.manifest import header, itemsize, num_bytes
from castile.runtime.backends.base import Key
from castile.runtime.comm.base import Communicator
from castile.runtime.region import Box, Region, uncovered


class Held(msgspec.Struct, frozen=True):
    """A box of a region that a rank holds."""

    region: str
    lo: tuple[int, ...]
    hi: tuple[int, ...]
    dtype: str

    @property
    def box(self) -> Box:
        return Box(self.lo, self.hi)


class Shares(msgspec.Struct, frozen=True):
    """What each rank writes, in the order in which it lies in the rank's file."""

    ranks: tuple[tuple[Held, ...], ...]


@dataclass(frozen=True)
class Layout:
    """All regions whole, and what this rank writes of them.

    nbytes        of this rank's tensors
    total_bytes   of all ranks' files: their tensors, and what tells where these lie
    """

    regions: Mapping[str, Region]
    mine: tuple[Held, ...]
    writers: tuple[int, ...]
    nbytes: int
    total_bytes: int


def agree(comm: Communicator, carried: Mapping[Key, np.ndarray]) -> Layout:
    """The layout of what the ranks hold together; every rank calls it. Raises ValueError for types no file can hold."""
    held = {(region, box): Held(region, *box, str(array.dtype)) for (region, box, _), array in carried.items()}
    gathered = comm.gather_bytes(msgspec.json.encode(list(held.values())))
    made = None
    if gathered is not None:
        every = [msgspec.json.decode(data, type=list[Held]) for data in gathered]
        made = msgspec.json.encode(share(every))
    shares = msgspec.json.decode(comm.bcast_bytes(made), type=Shares)
    regions = _regions(entry for mine in shares.ranks for entry in mine)
    sizes = [sum(num_bytes(e.box, regions[e.region]) for e in mine) for mine in shares.ranks]
    writers = tuple(rank for rank, mine in enumerate(shares.ranks) if mine)
    heads = sum(len(header(shapes_of(shares.ranks[rank]))[0]) for rank in writers)
    return Layout(regions, shares.ranks[comm.rank], writers, sizes[comm.rank], sum(sizes) + heads)


def shapes_of(held: Iterable[Held]) -> list[tuple[str, str, tuple[int, ...]]]:
    """The tensors of a rank's file: name, dtype and shape of each."""
    return [(f"{entry.region}{entry.box}", entry.dtype, entry.box.shape) for entry in held]


def share(held: list[list[Held]]) -> Shares:
    """Each box once, for the lowest rank that has it; wide elements first, so that all lie at multiples of theirs."""
    taken: set[tuple[str, Box]] = set()
    ranks = []
    for mine in held:
        new = {(entry.region, entry.box): entry for entry in mine if (entry.region, entry.box) not in taken}
        taken |= set(new)
        ranks.append(tuple(sorted(new.values(), key=lambda e: (-itemsize(e.dtype), e.region, e.lo, e.hi))))
    return Shares(tuple(ranks))


def _regions(held: Iterable[Held]) -> dict[str, Region]:
    """Every region whole, by name: boxes begin at 0 and leave nothing out."""
    boxes: dict[str, list[Held]] = {}
    for entry in held:
        boxes.setdefault(entry.region, []).append(entry)
    regions = {}
    for name, entries in sorted(boxes.items()):
        shape = tuple(max(n) for n in zip(*(entry.hi for entry in entries)))
        assert len({entry.dtype for entry in entries}) == 1, f"boxes of {name} differ in type"
        missing = uncovered(Box((0,) * len(shape), shape), [entry.box for entry in entries])
        assert not missing, f"no rank holds {name}{missing[0]}"
        regions[name] = Region(name, shape, entries[0].dtype)
    return regions

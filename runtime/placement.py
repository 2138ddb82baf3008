"""Placement: the box in which each read of a version lies: that of a source that is there, or of a copy to be made.

It does not know how copies are made, nor what regions hold. Processors are slots 0..n-1 of a template.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from castile.runtime.region import Box, bounding, contains, disjoint
from castile.runtime.transfer import Transfer

Read = tuple[int, Box]  # a processor, and the box that it reads


def placed(
    t: Transfer, reads: Sequence[Read], twins: Sequence[Hashable]
) -> tuple[dict[Read, int | None], dict[Read, Box]]:
    """By read: the piece of the source in which it lies, None where a copy has to be made; and the box of that piece or
    copy.
    """
    exact: set[Read] = set()
    while True:
        place = {read: _in_place(t, *read, read in exact) for read in dict.fromkeys(reads)}
        around = _around([read for read, found in place.items() if found is None], exact)
        around.update((read, t.pieces[found].box) for read, found in place.items() if found is not None)
        apart = _apart(reads, twins, around) - exact
        if not apart:
            return place, around
        exact |= apart


def standing(t: Transfer, reads: Sequence[Read]) -> dict[Read, int]:
    """The piece of each read whose box is exactly that of a source on its processor; empty where sources are partial
    sums.
    """
    held: dict[Read, int] = {}
    for (number, proc), piece in t.instances.items():
        held.setdefault((proc, t.sources[number].box), piece)
    found = {read: held[read] for read in reads if read in held}
    boxes = [source.box for source in t.sources]
    if not found or not all([box.volume for box in boxes]) or not disjoint(boxes):
        return {}
    return found


def lying(reads: Sequence[Read], twins: Sequence[Hashable]) -> dict[Read, Box]:
    """The box of the copy in which each read lies; the reads of twins lie in equal boxes."""
    exact: set[Read] = set()
    while True:
        around = _around(reads, exact)
        apart = _apart(reads, twins, around) - exact
        if not apart:
            return around
        exact |= apart


def _apart(reads: Sequence[Read], twins: Sequence[Hashable], around: Mapping[Read, Box]) -> set[Read]:
    """The reads of twins whose boxes differ."""
    if len(set(around.values())) == 1:
        return set()
    lies: dict[Hashable, set[Box]] = {}
    for read, number in zip(reads, twins, strict=False):
        lies.setdefault(number, set()).add(around[read])
    return {read for read, number in zip(reads, twins, strict=False) if len(lies[number]) > 1}


def _in_place(t: Transfer, proc: int, box: Box, exact: bool) -> int | None:
    """The piece on this processor that holds a box already; None where there is none, or another source adds to it.

    exact   whether the piece must be exactly that box
    """
    sources = t.overlaps.of(box)
    if len(sources) != 1:
        return None
    held = t.sources[sources[0]].box
    return t.instances.get((sources[0], proc)) if held == box or (not exact and contains(held, box)) else None


def _around(reads: Sequence[Read], exact: AbstractSet[Read]) -> dict[Read, Box]:
    """The box of the copy in which each read lies.

    Overlapping reads on a processor share a copy where their bounding box has no more elements than they have together;
    those in `exact` have a copy of their own.
    """
    distinct = set(reads)
    if len({proc for proc, _ in distinct}) == len(distinct):
        return {read: read[1] for read in distinct}
    on: dict[int, set[Box]] = {}
    for proc, box in distinct:
        on.setdefault(proc, set()).add(box)
    around = {}
    for proc, mine in on.items():
        boxes = merged(sorted(b for b in mine if (proc, b) not in exact))
        alone = exact | {(proc, box) for box in boxes}
        for box in mine:
            around[proc, box] = box if (proc, box) in alone else next(b for b in boxes if contains(b, box))
    return around


def merged(boxes: list[Box]) -> list[Box]:
    """Merge ascending boxes: two are replaced by their bounding box if that has no more elements than both together.

    The first such pair is merged first, until there is none.
    """
    volumes, n = [box.volume for box in boxes], 1
    while n < len(boxes):
        a, more = boxes[n], volumes[n]
        for m in range(n):
            around = bounding((a, boxes[m]))
            if around.volume <= more + volumes[m]:
                for gone in (n, m):
                    del boxes[gone], volumes[gone]
                at = bisect_left(boxes, around)
                if boxes[at : at + 1] != [around]:
                    boxes.insert(at, around)
                    volumes.insert(at, around.volume)
                # pairs before this one were tried
                n = max(1, min(at, n - 1))
                break
        else:
            n += 1
    return boxes

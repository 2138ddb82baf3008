"""Families: sources that are summed where they lie, and others of which copies are made apart and then added.

Where a parameter is used twice, cut along one axis here and along another there, its gradients are rows and columns.
Summed where they lie these would fill the box around both, and mostly zeros would be sent. Where one of two gradients
is needed only where it was made, it is added at the end, or the other would wait for it before it is sent. It does not
know by which tasks copies are made. Processors are slots 0..n-1 of a template.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from castile.runtime import transfer
from castile.runtime.components import Members, clusters
from castile.runtime.placement import Read
from castile.runtime.region import Box, bounding, overlap
from castile.runtime.task import Kind, View
from castile.runtime.transfer import Delivery, Source, Transfer


def families(sources: Sequence[Source], wanted: Sequence[Read]) -> list[list[int]]:
    """The numbers of the sources of each family, in order, given the copies that are wanted.

    Two that overlap on the same processors go apart if the box around them holds as much as both or more, or if one
    stays, that is, all copies with some of it are on its own processors, and the other does not. Those that stay are of
    the last families: what travels waits for none of them.
    """
    if _are_sums(sources, wanted):
        return _as_often(sources)
    others: dict[int, list[int]] = {}
    stay: set[int] = set()
    for cluster in clusters(sources, range(len(sources))):
        mine = {i for i in cluster if _stays(sources[i], wanted)} if len(cluster) > 1 else set()
        # Those of one box that all stay, or all travel, as of microbatches, need no comparing with each other.
        if len({(sources[i].box, i in mine) for i in cluster}) > 1:
            apart = {i: [j for j in cluster if _are_apart(sources, mine, i, j)] for i in cluster}
            stay |= {i for i in mine if not mine.issuperset(apart[i])}
            others |= apart
    found: list[list[int]] = []
    family_of: dict[int, int] = {}
    for some in ([i for i in range(len(sources)) if i not in stay], sorted(stay)):
        first = len(found)
        for i in some:
            taken = {family_of[j] for j in others.get(i, ()) if j in family_of}
            number = next(n for n in range(first, len(found) + 1) if n not in taken)
            if number == len(found):
                found.append([])
            found[number].append(i)
            family_of[i] = number
    return found


def _are_sums(sources: Sequence[Source], wanted: Sequence[Read]) -> bool:
    """Whether each source is a share of all of each copy."""
    return len({*[source.box for source in sources], *[box for _, box in wanted]}) == 1


def _as_often(sources: Sequence[Source]) -> list[list[int]]:
    """The numbers of the sources that lie on as many processors, from few to many: a sum among all who have one each of
    those is one task, and what lies everywhere stays.
    """
    found: dict[int, list[int]] = {}
    for i, source in enumerate(sources):
        found.setdefault(len(source.procs), []).append(i)
    return [found[count] for count in sorted(found)]


def _stays(source: Source, wanted: Sequence[Read]) -> bool:
    return all(proc in source.procs for proc, box in wanted if overlap(box, source.box))


def _are_apart(sources: Sequence[Source], stay: AbstractSet[int], i: int, j: int) -> bool:
    a, b = sources[i].box, sources[j].box
    if i == j or not overlap(a, b):
        return False
    return (i in stay) != (j in stay) or bounding((a, b)).volume >= a.volume + b.volume


def shares(
    t: Transfer, wanted: Sequence[Read], copies: dict[Read, int]
) -> Iterator[tuple[list[Delivery], dict[Read, int]]]:
    """What is to be made of each family for the copies that are wanted, and into which pieces: the copies themselves
    where there is one family. At the end of the others their shares are added up.
    """
    every = families(t.sources, wanted)
    if len(every) == 1:
        yield Members(t, every[0]).wanted(wanted), copies
        return
    found = [Members(t, family).wanted(wanted) for family in every]
    count = [sum(1 for copy in of if copy.members) for of in zip(*found, strict=True)]
    arrived: dict[Read, list[tuple[View, Box]]] = {read: [] for read, n in zip(wanted, count, strict=True) if n > 1}
    for number, mine in enumerate(found):
        wants, pieces = list[Delivery](), dict[Read, int]()
        for copy, read, n in zip(mine, wanted, count, strict=True):
            if read in arrived:
                if copy.members:
                    arrived[read].append(_share(t, copy, wants, pieces))
            elif copy.members or (n == 0 and number == 0):
                # All of it is of this family, or of none.
                wants.append(copy)
                pieces[read] = copies[read]
        yield wants, pieces
    for (proc, box), views in arrived.items():
        transfer.add_up(t, Kind.FOLD, "fold", proc, View(copies[proc, box], box), views)


def _share(t: Transfer, copy: Delivery, wants: list[Delivery], pieces: dict[Read, int]) -> tuple[View, Box]:
    """Where the share of a copy lies that one family has: in place, or in a piece that is wanted for it."""
    terms, box = t.terms(copy), t.around(copy)
    if len(terms) == 1 and terms[0].proc == copy.proc:
        return transfer.packed(t, terms[0], unbroken=False), box
    if (copy.proc, box) not in pieces:
        pieces[copy.proc, box] = t.add("staging", box, copy.proc)
        wants.append(Delivery(copy.proc, box, copy.members))
    return View(pieces[copy.proc, box], box), box

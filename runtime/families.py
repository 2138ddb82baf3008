"""Families of sources: sources of one family may be summed where they lie; copies of different families are made apart
and then added.

Where a parameter is used twice, cut along different axes, its gradients are rows and columns. Summed where they lie
they would fill their bounding box, and mostly zeros would be sent. And where one of two gradients is read only where it
was made, it is added last, so that sending the other need not wait for it. It does not know by which tasks copies are
made. Processors are slots 0..n-1 of a template.
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
    """The numbers of the sources of each family, in order, for the reads that copies are wanted for.

    Two sources that overlap on the same processors are of different families if their bounding box has at least as many
    elements as both, or if only one of them stays: a source stays if all reads of it are on its own processors. Sources
    that stay are of the last families, so that no message waits for them.
    """
    if _are_sums(sources, wanted):
        return _as_often(sources)
    others: dict[int, list[int]] = {}
    stay: set[int] = set()
    for cluster in clusters(sources, range(len(sources))):
        mine = {i for i in cluster if _stays(sources[i], wanted)} if len(cluster) > 1 else set()
        # Sources of one box that all stay, or none of which does, as of microbatches, need not be compared.
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
    """Whether each source is a partial sum of all of each copy."""
    return len({*[source.box for source in sources], *[box for _, box in wanted]}) == 1


def _as_often(sources: Sequence[Source]) -> list[list[int]]:
    """Families of sources by their number of processors, ascending: a sum among processors that have one source each is
    one task, and sources that lie everywhere need not be sent.
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
    """By family: the deliveries to be made, and their pieces. With one family these are the copies themselves. With
    several each makes its share of a copy, and at last tasks that add up shares are emitted.
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
                # the whole copy is of this family, or empty
                wants.append(copy)
                pieces[read] = copies[read]
        yield wants, pieces
    for (proc, box), views in arrived.items():
        transfer.add_up(t, Kind.FOLD, "fold", proc, View(copies[proc, box], box), views)


def _share(t: Transfer, copy: Delivery, wants: list[Delivery], pieces: dict[Read, int]) -> tuple[View, Box]:
    """The view of one family's share of a copy, and its box: in place, or in a new piece that is delivered to."""
    terms, box = t.terms(copy), t.around(copy)
    if len(terms) == 1 and terms[0].proc == copy.proc:
        return transfer.packed(t, terms[0], unbroken=False), box
    if (copy.proc, box) not in pieces:
        pieces[copy.proc, box] = t.add("staging", box, copy.proc)
        wants.append(Delivery(copy.proc, box, copy.members))
    return View(pieces[copy.proc, box], box), box

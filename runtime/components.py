"""Components: who takes part in which copy, and which copies must be made together because they share members.

It does not know by which tasks copies are made. Processors are slots 0..n-1 of a template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from castile.runtime.nearness import Holders, Nearness
from castile.runtime.placement import Read
from castile.runtime.region import Box, Overlaps, bounding, disjoint
from castile.runtime.transfer import Delivery, Source, Term, Transfer


@dataclass(eq=False)
class _Touched:
    """Of a family what overlaps a box, whoever reads that.

    clusters   the numbers of the clusters, ascending
    first      of each its first holder
    choices    those that have several: which of `clusters`, and who they are
    at         of each processor, where there are any, where it is among those who hold the first of `clusters` it holds
    made       the members that were made so far, by who of these was chosen
    """

    clusters: tuple[int, ...]
    first: tuple[int, ...]
    choices: list[tuple[int, Holders]]
    at: dict[int, int]
    made: dict[tuple[int, ...], tuple[Term, ...]] = field(default_factory=dict)


class Members:
    """Who takes part in a copy: sources on the same processors that overlap are summed where they lie, as one.

    family   the numbers of the sources of which copies are made
    """

    def __init__(self, t: Transfer, family: Sequence[int]) -> None:
        self.t = t
        self.clusters = clusters(t.sources, family)
        self.frames = [bounding({t.sources[i].box for i in cluster}) for cluster in self.clusters]
        self.number = {i: n for n, cluster in enumerate(self.clusters) for i in cluster}
        self._nearness = Nearness(t.links.groups)
        self._touched: dict[tuple[int, ...], _Touched] = {}
        self._of_sources: dict[int, _Touched] = {}

    def wanted(self, places: Sequence[Read]) -> list[Delivery]:
        """The copies to be made there."""
        return [Delivery(proc, box, self._members(proc, box)) for proc, box in places]

    def _members(self, proc: int, box: Box) -> tuple[Term, ...]:
        touched = self._touching(box)
        at = touched.at.get(proc)
        chosen = tuple([holders.asked(proc, at) for _, holders in touched.choices])
        if chosen not in touched.made:
            touched.made[chosen] = self._terms(touched, chosen)
        return touched.made[chosen]

    def _touching(self, box: Box) -> _Touched:
        found = self.t.overlaps.of(box)
        if id(found) not in self._of_sources:
            numbers = found
            if len(self.clusters) < len(self.t.sources):
                numbers = tuple(sorted({self.number[i] for i in found if i in self.number}))
            if numbers not in self._touched:
                self._touched[numbers] = self._looked_at(numbers)
            self._of_sources[id(found)] = self._touched[numbers]
        return self._of_sources[id(found)]

    def _looked_at(self, numbers: tuple[int, ...]) -> _Touched:
        every = [self.t.sources[self.clusters[n][0]].procs for n in numbers]
        choices = [(n, self._nearness.holders(procs)) for n, procs in enumerate(every) if len(procs) > 1]
        at: dict[int, int] = {}
        for procs in every if choices else ():
            for n, proc in enumerate(procs):
                at.setdefault(proc, n)
        return _Touched(numbers, tuple([procs[0] for procs in every]), choices, at)

    def _terms(self, touched: _Touched, chosen: Sequence[int]) -> tuple[Term, ...]:
        procs = list(touched.first)
        for (number, _), proc in zip(touched.choices, chosen, strict=True):
            procs[number] = proc
        rows = zip(touched.clusters, procs, strict=True)
        return tuple([Term(self.clusters[n], proc, self.frames[n]) for n, proc in rows])


def clusters(sources: Sequence[Source], among: Sequence[int]) -> list[tuple[int, ...]]:
    """Of some sources those on the same processors whose boxes overlap, in order; these are summed where they lie."""
    together: dict[tuple[int, ...], list[int]] = {}
    for i in among:
        together.setdefault(sources[i].procs, []).append(i)
    found = [cluster for each in together.values() for cluster in _overlapping(sources, each)]
    return sorted(found, key=min)


def _overlapping(sources: Sequence[Source], each: list[int]) -> list[tuple[int, ...]]:
    """Some sources in groups of those that overlap, also by way of others."""
    if len(each) == 1 or disjoint([sources[i].box for i in each]):
        return [(i,) for i in each]
    overlaps = Overlaps(sources[i].box for i in each)
    rest, groups = set(range(len(each))), []
    while rest:
        group, edge = set(), {min(rest)}
        while edge:
            group |= edge
            edge = {m for n in edge for m in overlaps.of(sources[each[n]].box)} - group
        rest -= group
        groups.append(tuple(each[n] for n in sorted(group)))
    return groups


@dataclass(eq=False)
class _Group:
    """Copies that share members.

    last   the number of the last copy
    into   the group that this one has become a part of
    """

    last: int = 0
    copies: list[Delivery] = field(default_factory=list)
    into: _Group | None = None

    def root(self) -> _Group:
        """The group that this one is a part of now: itself, or the one that it went into at last."""
        group = self
        while group.into is not None:
            group = group.into
        return group


def components(wanted: Sequence[Delivery]) -> list[list[Delivery]]:
    """The copies to be made, in groups that share no member."""
    of_members: dict[int, _Group] = {}
    of_member: dict[tuple[tuple[int, ...], int], _Group] = {}
    groups: list[_Group] = []
    for number, copy in enumerate(wanted):
        group = of_members.get(id(copy.members)) if copy.members else None
        if group is None:
            keys = [(m.sources, m.proc) for m in copy.members]
            joined = {id(g): g for key in keys if key in of_member for g in [of_member[key].root()]}
            group = _joined(sorted(joined.values(), key=lambda g: g.last), groups)
            of_member.update(dict.fromkeys(keys, group))
            of_members[id(copy.members)] = group
        group = group.root()
        group.last = number
        group.copies.append(copy)
    return [g.copies for g in sorted(groups, key=lambda g: g.last) if g.into is None]


def _joined(joined: Sequence[_Group], groups: list[_Group]) -> _Group:
    """These groups as one: the one that there is, or a new one into which all of them go."""
    if len(joined) == 1:
        return joined[0]
    group = _Group(copies=[copy for g in joined for copy in g.copies])
    for other in joined:
        other.into = group
    groups.append(group)
    return group

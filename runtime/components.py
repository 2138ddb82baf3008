"""Components: the members that contribute to each copy, and groups of copies that share members.

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
    """The clusters of a family that overlap a box, for any reader of it.

    clusters   their numbers, ascending
    first      the first holder of each
    choices    (cluster, holders) where there are several holders
    at         by processor its position among the holders of the first cluster that it holds; empty without choices
    cache      the members by the holders chosen
    """

    clusters: tuple[int, ...]
    first: tuple[int, ...]
    choices: list[tuple[int, Holders]]
    at: dict[int, int]
    cache: dict[tuple[int, ...], tuple[Term, ...]] = field(default_factory=dict)


class Members:
    """The members of copies: a member is one source, or a cluster of overlapping sources on the same processors, which
    are summed where they lie.

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
        """The copies to be made for these reads."""
        return [Delivery(proc, box, self._members(proc, box)) for proc, box in places]

    def _members(self, proc: int, box: Box) -> tuple[Term, ...]:
        touched = self._touching(box)
        at = touched.at.get(proc)
        chosen = tuple([holders.asked(proc, at) for _, holders in touched.choices])
        if chosen not in touched.cache:
            touched.cache[chosen] = self._terms(touched, chosen)
        return touched.cache[chosen]

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
    """Clusters of sources on the same processors whose boxes overlap, in order: these are summed where they lie."""
    together: dict[tuple[int, ...], list[int]] = {}
    for i in among:
        together.setdefault(sources[i].procs, []).append(i)
    found = [cluster for each in together.values() for cluster in _overlapping(sources, each)]
    return sorted(found, key=min)


def _overlapping(sources: Sequence[Source], each: list[int]) -> list[tuple[int, ...]]:
    """Connected components of sources by overlap."""
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
    """Copies that share members: a node of a union-find forest.

    last     the number of the last copy
    parent   the group that this one was merged into
    """

    last: int = 0
    copies: list[Delivery] = field(default_factory=list)
    parent: _Group | None = None

    def root(self) -> _Group:
        """The group that this one is a part of now."""
        group = self
        while group.parent is not None:
            group = group.parent
        return group


def components(wanted: Sequence[Delivery]) -> list[list[Delivery]]:
    """The copies in groups such that copies of different groups share no member."""
    of_members: dict[int, _Group] = {}
    of_member: dict[tuple[tuple[int, ...], int], _Group] = {}
    groups: list[_Group] = []
    for number, copy in enumerate(wanted):
        group = of_members.get(id(copy.members)) if copy.members else None
        if group is None:
            keys = [(m.sources, m.proc) for m in copy.members]
            sharing = {id(g): g for key in keys if key in of_member for g in [of_member[key].root()]}
            group = _merged(sorted(sharing.values(), key=lambda g: g.last), groups)
            of_member.update(dict.fromkeys(keys, group))
            of_members[id(copy.members)] = group
        group = group.root()
        group.last = number
        group.copies.append(copy)
    return [g.copies for g in sorted(groups, key=lambda g: g.last) if g.parent is None]


def _merged(sharing: Sequence[_Group], groups: list[_Group]) -> _Group:
    """The only one of some groups, or else a new group into which all of them are merged."""
    if len(sharing) == 1:
        return sharing[0]
    group = _Group(copies=[copy for g in sharing for copy in g.copies])
    for other in sharing:
        other.parent = group
    groups.append(group)
    return group

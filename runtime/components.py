"""Components: who takes part in which copy, and which copies must be made together because they share members.

It does not know by which tasks copies are made. Processors are slots 0..n-1 of a template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from castile.runtime.placement import Read
from castile.runtime.region import Box, Overlaps, bounding, disjoint
from castile.runtime.transfer import Source, Term, Transfer, Wanted


class Members:
    """Who takes part in a copy: sources on the same processors that overlap are summed where they lie, as one.

    family   the numbers of the sources of which copies are made
    """

    def __init__(self, t: Transfer, family: Sequence[int]) -> None:
        self.t = t
        self.clusters = clusters(t.sources, family)
        self.frames = [bounding({t.sources[i].box for i in cluster}) for cluster in self.clusters]
        self.number = {i: n for n, cluster in enumerate(self.clusters) for i in cluster}
        self._made: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Term, ...]] = {}
        self._of_touched: dict[int, tuple[Term, ...]] = {}
        self._nearest: dict[tuple[int, tuple[int, ...]], int] = {}
        self._taken: dict[tuple[int, ...], int] = {}

    def wanted(self, places: Sequence[Read]) -> list[Wanted]:
        """The copies to be made there."""
        return [Wanted(proc, box, self._members(proc, box)) for proc, box in places]

    def _members(self, proc: int, box: Box) -> tuple[Term, ...]:
        found = self.t.overlaps.of(box)
        if id(found) in self._of_touched:
            return self._of_touched[id(found)]
        touched = found
        if len(self.clusters) < len(self.t.sources):
            touched = tuple(sorted({self.number[i] for i in touched if i in self.number}))
        holders = [self.t.sources[self.clusters[n][0]].procs for n in touched]
        at = next((h.index(proc) for h in holders if proc in h), None) if any(len(h) > 1 for h in holders) else None
        chosen = tuple([h[0] if len(h) == 1 else self._near(proc, h, at) for h in holders])
        if (touched, chosen) not in self._made:
            rows = zip(touched, chosen, strict=True)
            self._made[touched, chosen] = tuple([Term(self.clusters[n], p, self.frames[n]) for n, p in rows])
        members = self._made[touched, chosen]
        if all(len(h) == 1 for h in holders):
            # no reader has a choice
            self._of_touched[id(found)] = members
        return members

    def _near(self, proc: int, holders: tuple[int, ...], at: int | None) -> int:
        """One of the nearest holders; readers that have the same ones near take them in turn.

        at   where the reader is among those who hold something else of what it reads: of those near it takes who is
             there among these, so that such readers and holders make a group
        """
        if (proc, holders) not in self._nearest:
            far = [self.t.links.distance(proc, h) for h in holders]
            nearest = min(far)
            near = tuple([h for h, d in zip(holders, far, strict=True) if d == nearest])
            if at is not None and at < len(holders) and far[at] == nearest:
                self._nearest[proc, holders] = holders[at]
            else:
                turn = self._taken[near] = self._taken.get(near, -1) + 1
                self._nearest[proc, holders] = near[turn % len(near)]
        return self._nearest[proc, holders]


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
    copies: list[Wanted] = field(default_factory=list)
    into: _Group | None = None

    def found(self) -> _Group:
        """The group that this one is a part of now: itself, or the one that it went into at last."""
        group = self
        while group.into is not None:
            group = group.into
        return group


def components(wanted: Sequence[Wanted]) -> list[list[Wanted]]:
    """The copies to be made, in groups that share no member."""
    of_members: dict[int, _Group] = {}
    of_member: dict[tuple[tuple[int, ...], int], _Group] = {}
    groups: list[_Group] = []
    for number, copy in enumerate(wanted):
        group = of_members.get(id(copy.members)) if copy.members else None
        if group is None:
            keys = [(m.sources, m.proc) for m in copy.members]
            joined = {id(g): g for key in keys if key in of_member for g in [of_member[key].found()]}
            group = _joined(sorted(joined.values(), key=lambda g: g.last), groups)
            of_member.update(dict.fromkeys(keys, group))
            of_members[id(copy.members)] = group
        group = group.found()
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

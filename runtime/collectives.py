"""Collectives: the cheapest way from where a version's pieces are to where they are needed.

Sources and readers are boxes on processors; out come the tasks that pack, move, unpack and sum. The general form
(point-to-point pieces plus sums) is always right; the special forms are ONE task over a group and equal it bit for bit,
because the fold of a sum is fixed: sources that always lie together are summed first, then these sums in their order.

It does not know what the regions hold or who produced them. Processors are slots 0..n-1 of a template.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import ceil, log2

from castile.runtime import placement, transfer
from castile.runtime.machine import Level
from castile.runtime.placement import Read
from castile.runtime.placement import filled as filled
from castile.runtime.region import Box, Overlaps, bounding, contiguous, disjoint, intersect, whole
from castile.runtime.task import View
from castile.runtime.transfer import Links, Run, Source, Term, Transfer, Wanted

SPECIAL_FORMS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")


def plan(
    sources: Sequence[Source],
    reads: Sequence[Read],
    dtype: str,
    links: Links,
    forms: Sequence[str] = SPECIAL_FORMS,
    alike: bool = False,
    twins: Sequence[Hashable] = (),
) -> Transfer:
    """Bring the version in `sources` to `reads`, (processor, box) each; of the special forms only `forms` are used.

    Sources that overlap are partial sums, or with `alike` hold the same values (what the host fills).
    twins[j], where given: reads of one number are of replicas, which compute the same bits, so their boxes lie alike:
    kernels may add in another order where strides differ.
    """
    t = Transfer(sources, dtype, links, forms)
    for i, source in enumerate(sources):
        for proc in source.procs:
            t.instances[i, proc] = t.add("source", source.box, proc)
    place, around = placement.placed(t, reads, alike, twins)
    wanted = sorted({(read[0], around[read]) for read, found in place.items() if found is None})
    copies = {(proc, box): t.add("copy", box, proc) for proc, box in wanted}
    for component in _components(_Members(t).wanted(wanted)) if wanted else ():
        _transfer(t, component, copies)
    t.located = [found if (found := place[read]) is not None else copies[read[0], around[read]] for read in reads]
    return t


class _Members:
    """Who takes part in a copy: sources on the same processors that overlap are summed where they lie, as one."""

    def __init__(self, t: Transfer) -> None:
        self.t = t
        self.clusters = _clusters(t.sources)
        self.frames = [bounding([t.sources[i].box for i in cluster]) for cluster in self.clusters]
        self.number = {i: n for n, cluster in enumerate(self.clusters) for i in cluster}
        self._made: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Term, ...]] = {}
        self._of_touched: dict[int, tuple[Term, ...]] = {}
        self._nearest: dict[tuple[int, tuple[int, ...]], list[int]] = {}

    def wanted(self, places: Sequence[Read]) -> list[Wanted]:
        """The copies to be made there."""
        index = {proc: n for n, proc in enumerate(sorted({proc for proc, _ in places}))}
        return [Wanted(proc, box, self._members(proc, box, index[proc])) for proc, box in places]

    def _members(self, proc: int, box: Box, index: int) -> tuple[Term, ...]:
        found = self.t.overlaps.of(box)
        if id(found) in self._of_touched:
            return self._of_touched[id(found)]
        touched = found
        if len(self.clusters) < len(self.t.sources):
            touched = tuple(sorted({self.number[i] for i in touched}))
        holders = [self.t.sources[self.clusters[n][0]].procs for n in touched]
        chosen = tuple([h[0] if len(h) == 1 else self._near(proc, h, index) for h in holders])
        if (touched, chosen) not in self._made:
            rows = zip(touched, chosen, strict=True)
            self._made[touched, chosen] = tuple([Term(self.clusters[n], p, self.frames[n]) for n, p in rows])
        members = self._made[touched, chosen]
        if all(len(h) == 1 for h in holders):
            # no reader has a choice
            self._of_touched[id(found)] = members
        return members

    def _near(self, proc: int, holders: tuple[int, ...], index: int) -> int:
        """One of the nearest holders; readers that have several take them in turn."""
        if (proc, holders) not in self._nearest:
            far = [self.t.links.distance(proc, h) for h in holders]
            nearest = min(far)
            self._nearest[proc, holders] = [h for h, d in zip(holders, far, strict=True) if d == nearest]
        near = self._nearest[proc, holders]
        return near[index % len(near)]


def _clusters(sources: Sequence[Source]) -> list[tuple[int, ...]]:
    """Sources on the same processors whose boxes overlap, in order; these are summed where they lie."""
    together: dict[tuple[int, ...], list[int]] = {}
    for i, source in enumerate(sources):
        together.setdefault(source.procs, []).append(i)
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
    """Copies that share members, and the number of the last of them."""

    last: int = 0
    copies: list[Wanted] = field(default_factory=list)
    into: _Group | None = None

    def found(self) -> _Group:
        """The group into which this one went."""
        group = self
        while group.into is not None:
            group = group.into
        return group


def _components(wanted: Sequence[Wanted]) -> list[list[Wanted]]:
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
    """One group of these, or a new one."""
    if len(joined) == 1:
        return joined[0]
    group = _Group(copies=[copy for g in joined for copy in g.copies])
    for other in joined:
        other.into = group
    groups.append(group)
    return group


def _transfer(t: Transfer, component: list[Wanted], copies: dict[Read, int]) -> None:
    special = _special(component)
    if special and special.form in t.forms and _is_cheaper(t, special, component):
        _collective(t, special, copies)
        return
    for copy in component:
        transfer.general(t, copy, copies[copy.proc, copy.box])


# The special forms: one task over a group.


@dataclass(frozen=True)
class Special:
    """A special form that fits: what each member contributes and gets, in group order, and the box around all."""

    form: str
    members: tuple[Term, ...]
    copies: tuple[Wanted, ...]
    around: Box


def _special(component: list[Wanted]) -> Special | None:
    """The special form that a component has, if it has one."""
    by_proc = {c.proc: c for c in component}
    asking: dict[int, list[Wanted]] = {}
    for copy in component:
        asking.setdefault(id(copy.members), []).append(copy)
    keys = dict.fromkeys((m.sources, m.proc) for each in asking.values() for m in each[0].members)
    procs = {proc for _, proc in keys}
    if len(procs) < len(keys) or len(by_proc) < len(component):
        return None
    if len(keys) != 1 and procs != set(by_proc):
        return None
    members = _contributed(list(asking.values()))
    around = bounding([c.box for c in component])
    if len(members) == 1:
        alike = len(component) > 1 and {c.box for c in component} == {members[0].box} and members[0].proc not in by_proc
        return Special("broadcast", members, tuple(sorted(component, key=lambda c: c.proc)), around) if alike else None
    if len(asking) > 1 and not _take_all(component, members):
        return None
    copies = tuple(by_proc[m.proc] for m in members)
    summed, tiled = {m.box for m in members} == {around}, _tiles([m.box for m in members], around)
    gathered, scattered = {c.box for c in copies} == {around}, _tiles([c.box for c in copies], around)
    if not (summed or tiled) or not (gathered or scattered):
        return None
    if summed:
        return Special("all_reduce" if gathered else "reduce_scatter", members, copies, around)
    return Special("all_gather" if gathered else "all_to_all", members, copies, around)


def _contributed(asking: Sequence[Sequence[Wanted]]) -> tuple[Term, ...]:
    """Each member with the box around all that it contributes; copies that have the same members come together."""
    boxes: dict[tuple[tuple[int, ...], int], list[Box]] = {}
    for copies in asking:
        around = bounding([copy.box for copy in copies])
        for m in copies[0].members:
            # each of them overlaps each member, so the box around what they have in common is this one
            common = intersect(m.box, around)
            assert common is not None
            boxes.setdefault((m.sources, m.proc), []).append(common)
    return tuple(Term(s, p, bounding(b) if len(b) > 1 else b[0]) for (s, p), b in sorted(boxes.items()))


def _take_all(component: Sequence[Wanted], members: Sequence[Term]) -> bool:
    """Whether copies are made of all that the members have of their boxes: of replicas they take one only."""
    overlaps = Overlaps(m.box for m in members)
    for copy in component:
        taken = {(m.sources, m.proc) for m in copy.members}
        if any((members[n].sources, members[n].proc) not in taken for n in overlaps.of(copy.box)):
            return False
    return True


def _tiles(boxes: list[Box], frame: Box) -> bool:
    return sum(b.volume for b in boxes) == frame.volume and disjoint(boxes)


def _collective(t: Transfer, special: Special, targets: dict[Read, int]) -> None:
    form, members, copies = special.form, special.members, special.copies
    ends = [View(targets[c.proc, c.box], c.box) for c in copies]
    if form == "broadcast":
        root = members[0]
        nothing = (None,) * len(copies)
        send = (transfer.packed(t, root, unbroken=True), *nothing)
        counts = ((root.box.volume,) * (len(copies) + 1),) * (len(copies) + 1)
        group = (root.proc, *(c.proc for c in copies))
        transfer.emit(t, form, group, send, (None, *ends), (None, *nothing), counts, root.box.volume)
        return
    group, n = tuple(m.proc for m in members), len(members)
    elements = special.around.volume
    landed: list[tuple[View, Run | None]] = [(end, None) for end in ends]
    if form == "all_reduce":
        counts = (tuple(elements // n + (j < elements % n) for j in range(n)),) * n
        send = tuple(transfer.packed(t, m, unbroken=True) for m in members)
    elif form == "reduce_scatter":
        pieces = [c.box for c in copies]
        counts = (tuple(p.volume for p in pieces),) * n
        send = _sent(t, members, [pieces] * n)
    elif form == "all_gather":
        pieces = [m.box for m in members]
        counts = tuple((p.volume,) * n for p in pieces)
        send = tuple(transfer.packed(t, m, unbroken=True) for m in members)
        landed = _landed(t, copies, [pieces] * n, ends)
    else:
        rows = [[intersect(m.box, c.box) for c in copies] for m in members]
        counts = tuple(tuple([p.volume if p else 0 for p in row]) for row in rows)
        send = _sent(t, members, [[p for p in row if p] for row in rows])
        landed = _landed(t, copies, [[p for p in column if p] for column in zip(*rows, strict=True)], ends)
        elements = max(map(sum, counts))
    scratch = tuple(_scratch(t, form, (n - 1) * counts[0][j], p) for j, p in enumerate(group))
    transfer.emit(t, form, group, send, tuple(view for view, _ in landed), scratch, counts, elements)
    for copy, end, (view, run) in zip(copies, ends, landed, strict=True):
        if run is not None:
            transfer.unpack(t, copy.proc, run, view, end)


def _sent(t: Transfer, members: Sequence[Term], pieces: Sequence[list[Box]]) -> tuple[View, ...]:
    """Each member's contribution as one flat array, in the order of the pieces that the others take."""
    sent = []
    for member, run in zip(members, _runs(t, pieces, [m.box for m in members]), strict=True):
        view = transfer.packed(t, member, unbroken=run is None)
        sent.append(view if run is None else transfer.laid_out(t, member.proc, view, run))
    return tuple(sent)


def _landed(
    t: Transfer, copies: Sequence[Wanted], pieces: Sequence[list[Box]], ends: Sequence[View]
) -> list[tuple[View, Run | None]]:
    """Where each member's result lands, and what is then to be unpacked where that is not the copy itself."""
    runs = _runs(t, pieces, [c.box for c in copies])
    rows = zip(copies, runs, ends, strict=True)
    return [(end if run is None else transfer.landing(t, copy.proc, run), run) for copy, run, end in rows]


def _runs(t: Transfer, pieces: Sequence[list[Box]], frames: Sequence[Box]) -> list[Run | None]:
    """Each list of pieces end to end, None where that is the dense array over its frame; one where the list is one."""
    known: dict[tuple[int, Box], Run | None] = {}
    found = []
    for each, frame in zip(pieces, frames, strict=True):
        key = (id(each), frame)
        if key not in known:
            known[key] = None if _end_to_end(each, frame) else transfer.run_of(t, each)
        found.append(known[key])
    return found


def _end_to_end(pieces: list[Box], frame: Box) -> bool:
    """Whether the pieces, laid end to end in this order, are the dense array over `frame`."""
    offset = 0
    for piece in pieces:
        start = 0
        for lo, first, extent in zip(piece.lo, frame.lo, frame.shape, strict=True):
            start = start * extent + lo - first
        if start != offset or not contiguous(piece, frame):
            return False
        offset += piece.volume
    return offset == frame.volume


def _scratch(t: Transfer, form: str, elements: int, proc: int) -> View | None:
    """Room for the pieces that a member adds up; the other forms need none."""
    if form not in ("all_reduce", "reduce_scatter") or not elements:
        return None
    return View(t.add("staging", whole((elements,)), proc), whole((elements,)))


# Which is cheaper: alpha-beta, with the bytes that copies and sums touch.


def seconds(form: str, nbytes: float, members: int, level: Level) -> float:
    """Alpha-beta time of a form (Thakur, Rabenseifner, Gropp 2005): `nbytes` as in CostKey, `members` of the group."""
    alpha, beta, n = level.latency_seconds, nbytes / level.bytes_per_second, members
    if form == "move":
        return alpha + beta
    if form == "broadcast":
        return ceil(log2(n)) * (alpha + beta)
    rounds = 2 if form == "all_reduce" else 1
    return rounds * (n - 1) * (alpha + beta / n)


def _form_seconds(t: Transfer, special: Special) -> float:
    procs = tuple(dict.fromkeys(p for m, c in zip(special.members, special.copies) for p in (m.proc, c.proc)))
    n = max(len(procs), len(special.copies) + (special.form == "broadcast"))
    # as in the task's cost key
    volume = max(m.box.volume for m in special.members) if special.form == "all_to_all" else special.around.volume
    nbytes = volume * t.itemsize
    folded = 3 * nbytes / t.links.copy_bytes_per_second if special.form in ("all_reduce", "reduce_scatter") else 0.0
    return seconds(special.form, nbytes, n, t.links.level(procs)) + folded + t.links.task_seconds


def _is_cheaper(t: Transfer, special: Special, component: list[Wanted]) -> bool:
    """Whether a form takes no longer than the general one."""
    form = _form_seconds(t, special)
    # what one of the copies takes decides mostly
    return form <= _general_seconds(t, component[:1]) or form <= _general_seconds(t, component)


def _general_seconds(t: Transfer, component: list[Wanted]) -> float:
    """The busiest processor's sends, or its receives and sums, one after another."""
    sends: dict[int, float] = {}
    receives: dict[int, float] = {}
    for copy in component:
        terms = copy.terms
        received = receives.get(copy.proc, 0.0)
        for _, proc, box in terms:
            nbytes = box.volume * t.itemsize
            if proc != copy.proc:
                cost = seconds("move", nbytes, 2, t.links.level((proc, copy.proc))) + t.links.task_seconds
                sends[proc] = sends.get(proc, 0.0) + cost
                received += cost
            if len(terms) > 1:
                received += 3 * nbytes / t.links.copy_bytes_per_second
        receives[copy.proc] = received
    return max((*sends.values(), *receives.values()), default=0.0)

"""Collectives: the cheapest way from where a version's pieces are to where they are needed.

Sources and readers are boxes on processors; out come the tasks that pack, move, unpack and sum. The general form
(point-to-point pieces plus sums) is always right; the special forms are ONE task over a group and equal it bit for bit,
because the fold of a sum is fixed: sources that always lie together are summed first, then these sums in their order.

It does not know what the regions hold or who produced them. Processors are slots 0..n-1 of a template.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2

from castile.runtime import transfer
from castile.runtime.machine import Level
from castile.runtime.region import Box, bounding, contains, contiguous, intersect, whole
from castile.runtime.task import Arg, Call, Kind, View
from castile.runtime.transfer import Links, Source, Term, Transfer, Wanted

Read = tuple[int, Box]  # a processor, and what it reads

SPECIAL_FORMS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")


def plan(
    sources: Sequence[Source],
    reads: Sequence[tuple[int, Box]],
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
    place, around = _placed(t, reads, alike, twins)
    wanted = sorted({(read[0], around[read]) for read, found in place.items() if found is None})
    copies = {(proc, box): t.add("copy", box, proc) for proc, box in wanted}
    for component in _components(t, wanted):
        _transfer(t, component, copies)
    t.located = [found if (found := place[read]) is not None else copies[read[0], around[read]] for read in reads]
    return t


def _placed(
    t: Transfer, reads: Sequence[Read], alike: bool, twins: Sequence[Hashable]
) -> tuple[dict[Read, int | None], dict[Read, Box]]:
    """For each read the source in which it lies, or None where it needs a copy; and the box of either."""
    exact: set[Read] = set()
    while True:
        place = {read: _in_place(t, *read, alike, read in exact) for read in dict.fromkeys(reads)}
        around = _around([read for read, found in place.items() if found is None], exact)
        around.update((read, t.pieces[found].box) for read, found in place.items() if found is not None)
        apart = _apart(reads, twins, around) - exact
        if not apart:
            return place, around
        exact |= apart


def filled(reads: Sequence[Read], twins: Sequence[Hashable] = ()) -> list[Read]:
    """Where the host puts what is read, so that each read lies in one piece, and those of twins alike."""
    exact: set[Read] = set()
    while True:
        around = _around(reads, exact)
        apart = _apart(reads, twins, around) - exact
        if not apart:
            return sorted({(proc, box) for (proc, _), box in around.items()})
        exact |= apart


def _apart(reads: Sequence[Read], twins: Sequence[Hashable], around: Mapping[Read, Box]) -> set[Read]:
    """The reads of twins that lie in different boxes."""
    lies: dict[Hashable, set[Box]] = {}
    for read, number in zip(reads, twins, strict=False):
        lies.setdefault(number, set()).add(around[read])
    return {read for read, number in zip(reads, twins, strict=False) if len(lies[number]) > 1}


def _in_place(t: Transfer, proc: int, box: Box, alike: bool, exact: bool) -> int | None:
    """The source that already holds all of a box (or just it) on this processor, where nothing is to be added to it."""
    touching = [i for i, source in enumerate(t.sources) if intersect(source.box, box) is not None]
    holding = [i for i in touching if proc in t.sources[i].procs and contains(t.sources[i].box, box)]
    holding.sort(key=lambda i: t.sources[i].box != box)
    if not holding or not (alike or len(touching) == 1) or (exact and t.sources[holding[0]].box != box):
        return None
    return t.held(holding[0], proc)


def _around(reads: Sequence[Read], exact: Collection[Read]) -> dict[Read, Box]:
    """The box of the copy in which each read lies.

    Reads on a processor that overlap share one where the box around them holds no more than they do; those that are
    `exact` have one to themselves.
    """
    around = {}
    for proc in {p for p, _ in reads}:
        mine = {b for p, b in reads if p == proc}
        boxes = sorted(b for b in mine if (proc, b) not in exact)
        while (pair := _overlapping(boxes)) is not None:
            boxes = sorted({bounding(pair), *(b for b in boxes if b not in pair)})
        for box in mine:
            around[proc, box] = box if (proc, box) in exact else next(b for b in boxes if contains(b, box))
    return around


def _overlapping(boxes: list[Box]) -> tuple[Box, Box] | None:
    for n, a in enumerate(boxes):
        for b in boxes[:n]:
            if bounding((a, b)).volume <= a.volume + b.volume:
                return a, b
    return None


def _components(t: Transfer, wanted: list[tuple[int, Box]]) -> list[list[Wanted]]:
    """The copies to be made, in groups that share no term's processor and sources."""
    clusters = _clusters(t.sources)
    procs = sorted({p for p, _ in wanted})
    copies = [_wanted(t, clusters, proc, box, procs.index(proc)) for proc, box in wanted]
    groups: list[tuple[set, list[Wanted]]] = []
    for copy in copies:
        keys = {(term.sources, term.proc) for term in copy.terms}
        joined = [g for g in groups if g[0] & keys]
        groups = [g for g in groups if not g[0] & keys]
        groups.append((set().union(keys, *(g[0] for g in joined)), [w for g in joined for w in g[1]] + [copy]))
    return [members for _, members in groups]


def _clusters(sources: Sequence[Source]) -> list[tuple[int, ...]]:
    """Sources on the same processors whose boxes overlap, in order; these are summed where they lie."""
    clusters: list[list[int]] = []
    for i, source in enumerate(sources):
        touching = [
            c for c in clusters
            if sources[c[0]].procs == source.procs and any(intersect(sources[j].box, source.box) for j in c)
        ]  # fmt: skip
        clusters = [c for c in clusters if c not in touching]
        clusters.append([j for c in touching for j in c] + [i])
    return [tuple(sorted(c)) for c in sorted(clusters, key=min)]


def _wanted(t: Transfer, clusters: list[tuple[int, ...]], proc: int, box: Box, index: int) -> Wanted:
    terms = []
    for cluster in clusters:
        around = bounding([t.sources[i].box for i in cluster])
        common = intersect(around, box)
        if common is None or not any(intersect(t.sources[i].box, box) for i in cluster):
            continue
        holders = t.sources[cluster[0]].procs
        nearest = min(t.links.distance(proc, h) for h in holders)
        near = [h for h in holders if t.links.distance(proc, h) == nearest]
        terms.append(Term(cluster, near[index % len(near)], common))
    return Wanted(proc, box, tuple(terms))


def _transfer(t: Transfer, component: list[Wanted], copies: dict[tuple[int, Box], int]) -> None:
    special = _special(component)
    if special and special.form in t.forms and _form_seconds(t, special) <= _general_seconds(t, component):
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
    terms = dict.fromkeys(term for copy in component for term in copy.terms)
    boxes: dict[tuple[tuple[int, ...], int], list[Box]] = {}
    for term in terms:
        boxes.setdefault((term.sources, term.proc), []).append(term.box)
    members = tuple(Term(s, p, bounding(b)) for (s, p), b in sorted(boxes.items()))
    by_proc = {c.proc: c for c in component}
    if len({m.proc for m in members}) < len(members) or len(by_proc) < len(component):
        return None
    around = bounding([c.box for c in component])
    if len(members) == 1:
        alike = len(component) > 1 and {c.box for c in component} == {members[0].box} and members[0].proc not in by_proc
        return Special("broadcast", members, tuple(sorted(component, key=lambda c: c.proc)), around) if alike else None
    if {m.proc for m in members} != set(by_proc) or not all(_takes_all(copy, members) for copy in component):
        return None
    copies = tuple(by_proc[m.proc] for m in members)
    summed, tiled = {m.box for m in members} == {around}, _tiles([m.box for m in members], around)
    gathered, scattered = {c.box for c in copies} == {around}, _tiles([c.box for c in copies], around)
    if not (summed or tiled) or not (gathered or scattered):
        return None
    if summed:
        return Special("all_reduce" if gathered else "reduce_scatter", members, copies, around)
    return Special("all_gather" if gathered else "all_to_all", members, copies, around)


def _takes_all(copy: Wanted, members: Sequence[Term]) -> bool:
    """Whether a copy is made of all that the members have of its box: of replicas it takes one only."""
    taken = {(term.sources, term.proc) for term in copy.terms}
    return all((m.sources, m.proc) in taken for m in members if intersect(m.box, copy.box))


def _tiles(boxes: list[Box], frame: Box) -> bool:
    overlap = any(intersect(a, b) for n, a in enumerate(boxes) for b in boxes[:n])
    return not overlap and sum(b.volume for b in boxes) == frame.volume


def _collective(t: Transfer, special: Special, targets: dict[tuple[int, Box], int]) -> None:
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
    if form == "all_reduce":
        volume = special.around.volume
        counts = (tuple(volume // n + (j < volume % n) for j in range(n)),) * n
        send = tuple(transfer.packed(t, m, unbroken=True) for m in members)
        landed: list[tuple[View, list[tuple[View, Box]]]] = [(end, []) for end in ends]
    else:
        pieces = [[intersect(m.box, c.box) for c in copies] for m in members]
        counts = tuple(tuple(p.volume if p else 0 for p in row) for row in pieces)
        send = tuple(_sent(t, form, m, [p for p in row if p]) for m, row in zip(members, pieces, strict=True))
        columns = [[row[j] for row in pieces] for j in range(n)]
        landed = [
            _landed(t, form, c, [p for p in column if p], end)
            for c, column, end in zip(copies, columns, ends, strict=True)
        ]
    scratch = tuple(_scratch(t, form, (n - 1) * counts[0][j], p) for j, p in enumerate(group))
    elements = max(map(sum, counts)) if form == "all_to_all" else special.around.volume
    transfer.emit(t, form, group, send, tuple(view for view, _ in landed), scratch, counts, elements)
    for copy, end, (_, views) in zip(copies, ends, landed, strict=True):
        if views:
            transfer.add_up(t, Kind.FOLD, "unpack", copy.proc, end, views)


def _sent(t: Transfer, form: str, member: Term, pieces: list[Box]) -> View:
    """A member's contribution as one flat array, in the order of the pieces that the others take."""
    if form == "all_gather" or _end_to_end(pieces, member.box):
        return transfer.packed(t, member, unbroken=True)
    source = transfer.packed(t, member, unbroken=False)
    end_to_end, runs = transfer.flat(t, member.proc, pieces)
    views = [v for p, run in zip(pieces, runs, strict=True) for v in (View(source.buffer, p), run)]
    calls = [Call("copy", (Arg("view", n),), (Arg("view", n + 1),)) for n in range(0, len(views), 2)]
    transfer.local(t, Kind.PACK, "pack", member.proc, views, calls)
    return end_to_end


def _landed(t: Transfer, form: str, copy: Wanted, pieces: list[Box], end: View) -> tuple[View, list[tuple[View, Box]]]:
    """Where a member's result lands, and what is then to be unpacked where that is not the copy itself."""
    if form == "reduce_scatter" or _end_to_end(pieces, copy.box):
        return end, []
    end_to_end, runs = transfer.flat(t, copy.proc, pieces)
    return end_to_end, list(zip(runs, pieces, strict=True))


def _end_to_end(pieces: list[Box], frame: Box) -> bool:
    """Whether the pieces, laid end to end in this order, are the dense array over `frame`."""
    offset = 0
    for piece in pieces:
        start = 0
        for lo, first, extent in zip(piece.lo, frame.lo, frame.shape, strict=True):
            start = start * extent + lo - first
        if not contiguous(piece, frame) or start != offset:
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


def _general_seconds(t: Transfer, component: list[Wanted]) -> float:
    """The busiest processor's sends, or its receives and sums, one after another."""
    sends: dict[int, float] = {}
    receives: dict[int, float] = {}
    for copy in component:
        for term in copy.terms:
            nbytes = term.box.volume * t.itemsize
            if term.proc != copy.proc:
                cost = seconds("move", nbytes, 2, t.links.level((term.proc, copy.proc))) + t.links.task_seconds
                sends[term.proc] = sends.get(term.proc, 0.0) + cost
                receives[copy.proc] = receives.get(copy.proc, 0.0) + cost
            if len(copy.terms) > 1:
                folded = 3 * nbytes / t.links.copy_bytes_per_second
                receives[copy.proc] = receives.get(copy.proc, 0.0) + folded
    return max((*sends.values(), *receives.values()), default=0.0)

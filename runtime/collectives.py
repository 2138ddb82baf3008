"""Collectives: the cheapest way from where a version's pieces are to where they are needed.

Sources and readers are boxes on processors; out come the tasks that pack, move, unpack and sum. The general form
(point-to-point pieces plus sums) is always right; the special forms are ONE task over a group and equal it bit for bit,
because the fold of a sum is fixed: sources that always lie together are summed first, then these sums in their order.

It does not know what the regions hold or who produced them. Processors are slots 0..n-1 of a template.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import ceil, inf, log2
from typing import NamedTuple

from castile.runtime import placement, runs, transfer
from castile.runtime.components import components
from castile.runtime.families import shares
from castile.runtime.machine import Level
from castile.runtime.placement import Read
from castile.runtime.region import (
    Box,
    Overlaps,
    all_overlap,
    bounding,
    disjoint,
    intersect,
    overlap,
    whole,
)
from castile.runtime.runs import Run
from castile.runtime.task import View
from castile.runtime.transfer import Links, Source, Term, Transfer, Wanted, terms_of

SPECIAL_FORMS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
# So many members of a copy are looked at first to see that a form is cheaper.
DECISIVE = 8


def plan(
    sources: Sequence[Source],
    reads: Sequence[Read],
    dtype: str,
    links: Links,
    forms: Sequence[str] = SPECIAL_FORMS,
    twins: Sequence[Hashable] = (),
    most: float = inf,
) -> Transfer:
    """Bring the version in `sources` to `reads`, (processor, box) each; of the special forms only `forms` are used.

    Raises TooManyTransfers where that takes more tasks than `most`, as soon as it is seen.

    Sources that overlap are partial sums.
    twins[j], where given: reads of one number are of replicas, which compute the same bits, so their boxes lie alike:
    kernels may add in another order where strides differ.
    """
    t = Transfer(sources, dtype, links, forms, most)
    for i, source in enumerate(sources):
        for proc in source.procs:
            t.instances[i, proc] = t.add("source", source.box, proc)
    held, component = dict[Read, int](), _from_all(sources, reads)
    if not component:
        held = placement.standing(t, reads)
        component = _from_all(sources, [read for read in reads if read not in held]) if held else []
    if component or all([read in held for read in reads]):
        copies = {(copy.proc, copy.box): t.add("copy", copy.box, copy.proc) for copy in component}
        if component:
            _transfer(t, component, copies)
        t.located = [held[read] if read in held else copies[read] for read in reads]
        return t
    place, around = placement.placed(t, reads, twins)
    wanted = sorted({(read[0], around[read]) for read, found in place.items() if found is None})
    copies = {(proc, box): t.add("copy", box, proc) for proc, box in wanted}
    for wants, pieces in shares(t, wanted, copies) if wanted else ():
        for component in components(wants):
            _transfer(t, component, pieces)
    t.located = [found if (found := place[read]) is not None else copies[read[0], around[read]] for read in reads]
    return t


def _from_all(sources: Sequence[Source], reads: Sequence[Read]) -> list[Wanted]:
    """The copies to be made where each of several processors has one source, and all of these reads need some of each;
    else none. Gradients are summed so, and parameters gathered: `components` take long to find that out.
    """
    # most others are told by two of them
    if len(sources) < 2 or not reads or not overlap(sources[0].box, reads[-1][1]):
        return []
    wanted = sorted(set(reads))
    if len({proc for proc, _ in wanted}) < len(wanted):
        return []
    if any([len(source.procs) > 1 for source in sources]) or len({source.procs for source in sources}) < len(sources):
        return []
    if not all_overlap({source.box for source in sources}, {box for _, box in wanted}):
        return []
    members = tuple([Term((n,), source.procs[0], source.box) for n, source in enumerate(sources)])
    return [Wanted(proc, box, members) for proc, box in wanted]


def _transfer(t: Transfer, component: list[Wanted], copies: dict[Read, int]) -> None:
    special = _special(component) or _sum_for_some(t, component)
    if special and special.form in t.forms and _is_cheaper(t, special, component):
        _collective_for(t, special, copies)
        return
    if _passed_on(t, component, copies) or _box_by_box(t, component, copies):
        return
    for copy in component:
        transfer.general(t, copy, copies[copy.proc, copy.box])


def _passed_on(t: Transfer, component: list[Wanted], copies: dict[Read, int]) -> bool:
    """Make a copy once, where all who contribute to it want it, and pass it on to the others from the nearest of them.

    Returns whether that was cheaper, and so was done. The others get the bits that they would have had by adding
    themselves, since all add in the same order.
    """
    members = component[0].members
    holders = {m.proc for m in members}
    first, others = ([c for c in component if (c.proc in holders) == inside] for inside in (True, False))
    if len(members) < 2 or not others or len(first) < len(holders):
        return False
    if any(c.members is not members or c.box != first[0].box for c in component):
        return False
    special = _special(first)
    if special is None or special.form not in t.forms:
        return False
    everything = tuple(source for m in members for source in m.sources)
    onward = []
    for index, copy in enumerate(others):
        far = {h.proc: t.links.distance(copy.proc, h.proc) for h in first}
        near = [proc for proc, distance in far.items() if distance == min(far.values())]
        onward.append(Wanted(copy.proc, copy.box, (Term(everything, near[index % len(near)], copy.box),)))
    if _form_seconds(t, special) + _general_seconds(t, onward) > _general_seconds(t, component):
        return False
    _collective(t, special, copies)
    for copy in first:
        t.packs[everything, copy.proc, copy.box] = View(copies[copy.proc, copy.box], copy.box)
    for each in components(onward):
        _transfer(t, each, copies)
    return True


def _box_by_box(t: Transfer, component: list[Wanted], copies: dict[Read, int]) -> bool:
    """Make a sum of which some want one box and some another by an all-reduce for each box, over all who contribute.

    Returns whether that was cheaper, and so was done.
    """
    wanted: dict[Box, list[Wanted]] = {}
    for copy in component:
        wanted.setdefault(copy.box, []).append(copy)
    if len(wanted) < 2:
        return False
    each = [_sum_for_some(t, some) for some in wanted.values()]
    found = [special for special in each if special and special.form in t.forms]
    if len(found) < len(wanted):
        return False
    if sum(_form_seconds(t, special) for special in found) > _general_seconds(t, component):
        return False
    for special in found:
        _collective_for(t, special, copies)
    return True


def _sum_for_some(t: Transfer, component: list[Wanted]) -> Special | None:
    """An all-reduce for the sake of some of its members, which all want the same."""
    first, terms = component[0], t.terms(component[0])
    procs = {term.proc for term in terms}
    if len(procs) < 2 or len(procs) < len(terms) or any(term.box != first.box for term in terms):
        return None
    if any(c.proc not in procs or c.box != first.box or c.members is not first.members for c in component):
        return None
    members = tuple(sorted(terms))
    return Special("all_reduce", members, tuple([Wanted(m.proc, first.box, first.members) for m in members]), first.box)


# The special forms: one task over a group.


class Special(NamedTuple):
    """A special form that fits: what each member contributes and gets, in group order, and the box around all."""

    form: str
    members: tuple[Term, ...]
    copies: tuple[Wanted, ...]
    around: Box

    @property
    def elements(self) -> int:
        """What its cost key counts: all that there is, but of an all-to-all what the member with most sends."""
        return max(m.box.volume for m in self.members) if self.form == "all_to_all" else self.around.volume


def _special(component: list[Wanted]) -> Special | None:
    """The special form that a component has, if it has one."""
    by_proc = {c.proc: c for c in component}
    asking: dict[int, list[Wanted]] = {}
    for copy in component:
        asking.setdefault(id(copy.members), []).append(copy)
    keys = {(m.sources, m.proc) for each in asking.values() for m in each[0].members}
    procs = {proc for _, proc in keys}
    if len(procs) < len(keys) or len(by_proc) < len(component):
        return None
    if len(keys) != 1 and procs != set(by_proc):
        return None
    members = _contributed(list(asking.values()))
    around = bounding({c.box for c in component})
    if len(members) == 1:
        alike = len(component) > 1 and {c.box for c in component} == {members[0].box} and members[0].proc not in by_proc
        return Special("broadcast", members, tuple(sorted(component, key=lambda c: c.proc)), around) if alike else None
    if len(asking) > 1 and not _take_all(component, members):
        return None
    copies = tuple(by_proc[m.proc] for m in members)
    summed, gathered = ({each.box for each in of} == {around} for of in (members, copies))
    if not (summed or _tiles([m.box for m in members], around)):
        return None
    if not (gathered or _tiles([c.box for c in copies], around)):
        return None
    if summed:
        return Special("all_reduce" if gathered else "reduce_scatter", members, copies, around)
    return Special("all_gather" if gathered else "all_to_all", members, copies, around)


def _contributed(asking: Sequence[Sequence[Wanted]]) -> tuple[Term, ...]:
    """Each member with the box around all that it contributes; copies that have the same members come together."""
    boxes: dict[tuple[tuple[int, ...], int], list[Box]] = {}
    for copies in asking:
        around = bounding({copy.box for copy in copies})
        # each of them overlaps each member, so the box around what they have in common is this one
        terms = terms_of(copies[0].members, around)
        if len(asking) == 1:
            return tuple(sorted(terms))
        for sources, proc, box in terms:
            boxes.setdefault((sources, proc), []).append(box)
    return tuple([Term(s, p, bounding(b)) for (s, p), b in sorted(boxes.items())])


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


def _collective_for(t: Transfer, special: Special, copies: dict[Read, int]) -> None:
    """The form, of which some members' results may be wanted by nobody."""
    others = {(c.proc, c.box) for c in special.copies}.difference(copies)
    more = {read: t.add("staging", read[1], read[0]) for read in sorted(others)}
    _collective(t, special, copies | more if more else copies)


def _collective(t: Transfer, special: Special, targets: dict[Read, int]) -> None:
    form, members, copies = special.form, special.members, special.copies
    ends = [View(targets[c.proc, c.box], c.box) for c in copies]
    if form == "broadcast":
        root = members[0]
        nothing = (None,) * len(copies)
        send = (transfer.packed(t, root, unbroken=True), *nothing)
        counts = ((root.box.volume,) * (len(copies) + 1),) * (len(copies) + 1)
        group = (root.proc, *(c.proc for c in copies))
        transfer.emit(t, form, group, send, (None, *ends), (None, *nothing), counts, special.elements)
        return
    group, n = tuple(m.proc for m in members), len(members)
    elements = special.elements
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
    scratch = _scratch(t, form, [(n - 1) * count for count in counts[0]], group)
    transfer.emit(t, form, group, send, tuple(view for view, _ in landed), scratch, counts, elements)
    for copy, end, (view, run) in zip(copies, ends, landed, strict=True):
        if run is not None:
            runs.unpack(t, copy.proc, run, view, end)


def _sent(t: Transfer, members: Sequence[Term], pieces: Sequence[list[Box]]) -> tuple[View, ...]:
    """Each member's contribution as one flat array, in the order of the pieces that the others take."""
    sent = []
    for member, run in zip(members, runs.of(pieces, [m.box for m in members]), strict=True):
        view = transfer.packed(t, member, unbroken=run is None)
        sent.append(view if run is None else runs.laid_out(t, member.proc, view, run))
    return tuple(sent)


def _landed(
    t: Transfer, copies: Sequence[Wanted], pieces: Sequence[list[Box]], ends: Sequence[View]
) -> list[tuple[View, Run | None]]:
    """Where each member's result lands, and what is then to be unpacked where that is not the copy itself."""
    rows = zip(copies, runs.of(pieces, [c.box for c in copies]), ends, strict=True)
    return [(end if run is None else runs.landing(t, copy.proc, run), run) for copy, run, end in rows]


def _scratch(t: Transfer, form: str, elements: Sequence[int], group: Sequence[int]) -> tuple[View | None, ...]:
    """Room for the pieces that each member adds up, so many elements; the other forms need none."""
    if form not in ("all_reduce", "reduce_scatter"):
        return (None,) * len(group)
    boxes = {count: whole((count,)) for count in set(elements)}
    each = [(boxes[count], proc) for count, proc in zip(elements, group, strict=True)]
    return tuple([View(t.add("staging", box, proc), box) if box.volume else None for box, proc in each])


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
    nbytes = special.elements * t.itemsize
    folded = 3 * nbytes / t.links.copy_bytes_per_second if special.form in ("all_reduce", "reduce_scatter") else 0.0
    level = t.links.level(procs)
    took = seconds(special.form, nbytes, n, level)
    if t.links.has_trees and special.form == "all_reduce":
        # up one tree and down again; a broadcast goes down one anyway
        took = min(took, 2 * seconds("broadcast", nbytes, n, level))
    return took + folded + t.links.task_seconds


def _is_cheaper(t: Transfer, special: Special, component: list[Wanted]) -> bool:
    """Whether a form takes no longer than the general one."""
    form, first = _form_seconds(t, special), component[0]
    # what one of the copies takes of a few members decides mostly
    some = [Wanted(first.proc, first.box, first.members[:DECISIVE])]
    return form <= _general_seconds(t, some, form) or form <= _general_seconds(t, component, form)


def _general_seconds(t: Transfer, component: list[Wanted], enough: float = inf) -> float:
    """The busiest processor's sends, or its receives and sums, one after another; at least `enough` where they are."""
    sends: dict[int, float] = {}
    receives: dict[int, float] = {}
    sizes: dict[Box, int] = {}
    for copy in component:
        terms = t.terms(copy)
        # a sum is a task of its own
        received = receives.get(copy.proc, 0.0) + (t.links.task_seconds if len(terms) > 1 else 0.0)
        for _, proc, box in terms:
            if (nbytes := sizes.get(box)) is None:
                nbytes = sizes[box] = box.volume * t.itemsize
            if proc != copy.proc:
                cost = seconds("move", nbytes, 2, t.links.level((proc, copy.proc))) + t.links.task_seconds
                sends[proc] = sends.get(proc, 0.0) + cost
                received += cost
            if len(terms) > 1:
                received += 3 * nbytes / t.links.copy_bytes_per_second
            if received >= enough:
                return received
        receives[copy.proc] = received
    return max((*sends.values(), *receives.values()), default=0.0)

"""Collectives: the cheapest transfer tasks that bring a version's pieces to where they are read.

Sources and reads are boxes on processors; the result is the tasks that pack, move, unpack and sum. The general form
(point-to-point pieces plus sums) is always possible. A special form is ONE task over a group, equal to the general form
bit for bit, because the order of a sum is fixed: sources that always lie together are summed first, then these sums in
their order.

It does not know what regions hold, nor who produced them. Processors are slots 0..n-1 of a template.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from math import inf
from typing import TypeVar

from msgspec import structs

from castile.runtime import emission, placement, transfer
from castile.runtime.components import components
from castile.runtime.families import shares
from castile.runtime.forms import (
    SPECIAL_FORMS,
    Special,
    form_seconds,
    general_seconds,
    is_cheaper,
    special_of,
    sum_of_all,
    tile,
)
from castile.runtime.nearness import Holders, Nearness
from castile.runtime.placement import Read
from castile.runtime.region import Box, all_overlap, bounding, overlap
from castile.runtime.task import Kind, View
from castile.runtime.transfer import Delivery, Links, Source, Term, Transfer

# Copies and terms may be widened, so that a special form applies, to at most this many times the elements that are
# wanted.
MOST_WIDENING = 2

Placed = TypeVar("Placed", Term, Delivery)


def plan(
    sources: Sequence[Source],
    reads: Sequence[Read],
    dtype: str,
    links: Links,
    forms: Sequence[str] = SPECIAL_FORMS,
    twins: Sequence[Hashable] = (),
    most: float = inf,
) -> Transfer:
    """Plan the transfer of a version from `sources` to `reads`.

    sources   boxes on processors; sources that overlap are partial sums
    reads     (processor, box) each
    forms     the special forms that may be used
    twins     by read a number: reads of one number are of replicas, which compute the same bits, so their boxes must
              have the same strides, as kernels may sum in another order where strides differ
    Raises TooManyTransfers where it takes more than `most` tasks.
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


def _from_all(sources: Sequence[Source], reads: Sequence[Read]) -> list[Delivery]:
    """The copies to be made where several processors have one source each, and every read needs a part of each of
    them; empty otherwise.

    This is the case of gradients that are summed and parameters that are gathered: a shortcut for `components`.
    """
    # most other cases are excluded by one pair
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
    return [Delivery(proc, box, members) for proc, box in wanted]


def _transfer(t: Transfer, component: list[Delivery], copies: dict[Read, int]) -> None:
    special = special_of(t, component) or _sum_for_some(t, component)
    if special and special.form in t.forms and is_cheaper(t, special, component):
        _collective_for(t, special, copies)
        return
    ways = _make_once_and_forward, _gather_among_readers, _split_into_groups, _gather_widened, _sum_widened
    if not any(way(t, component, copies) for way in ways):
        transfer.general(t, component, copies)


def _make_once_and_forward(t: Transfer, component: list[Delivery], copies: dict[Read, int]) -> bool:
    """Make each copy once, among its contributors, and forward it to the others from the nearest holder.

    Returns whether that was cheaper, and so was done. The bits are those that the others would have computed, since all
    sum in the same order.
    """
    members = component[0].members
    if len(members) < 2 or any(c.members is not members for c in component):
        return False
    boxes = {c.box for c in component}
    first, others = _makers_first(component, {m.proc for m in members}, len(boxes) > 1)
    if not others or (len(boxes) > 1 and {c.box for c in first} != boxes):
        return False
    special = special_of(t, first) if len(boxes) > 1 or len(first) == len(members) else sum_of_all(t, component[0])
    if special is None or special.form not in t.forms:
        return False
    everything = tuple(source for m in members for source in m.sources)
    holders, onward = _holders(t, special), []
    for index, copy in enumerate(others):
        near = holders[copy.box].nearest(copy.proc).procs
        onward.append(Delivery(copy.proc, copy.box, (Term(everything, near[index % len(near)], copy.box),)))
    if form_seconds(t, special) + general_seconds(t, onward) > general_seconds(t, component):
        return False
    made = _collective_for(t, special, copies)
    for made_there in filter(None, special.copies):
        proc, box = made_there.proc, made_there.box
        t.packs[everything, proc, box] = View(made[proc, box], box)
    for each in components(onward):
        _transfer(t, each, copies)
    return True


def _holders(t: Transfer, special: Special) -> dict[Box, Holders]:
    """The holders of each box that a special form makes."""
    procs: dict[Box, list[int]] = {}
    for copy in filter(None, special.copies):
        procs.setdefault(copy.box, []).append(copy.proc)
    nearness = Nearness(t.links.groups)
    return {box: nearness.holders(tuple(each)) for box, each in procs.items()}


def _makers_first(
    component: Sequence[Delivery], holders: AbstractSet[int], several: bool
) -> tuple[list[Delivery], list[Delivery]]:
    """The copies to be made by contributors, and the others; of several boxes one copy of each is made."""
    made, first, others = set[Box](), list[Delivery](), list[Delivery]()
    for copy in component:
        if copy.proc not in holders or (several and copy.box in made):
            others.append(copy)
        else:
            first.append(copy)
            made.add(copy.box)
    return first, others


def _gather_among_readers(t: Transfer, component: list[Delivery], copies: dict[Read, int]) -> bool:
    """Send a part each to several readers that want the same box and hold none of it, and all-gather among them.

    Returns whether that was cheaper, and so was done: where readers are near each other and far from the holders, each
    byte crosses the slow link once.
    """
    first, terms = component[0], t.terms(component[0])
    wanting = sorted(component, key=lambda copy: copy.proc)
    procs = {copy.proc for copy in wanting}
    if "all_gather" not in t.forms or len(procs) < 2 or not len(procs) == len(wanting) == len(terms):
        return False
    if any(c.members is not first.members or c.box != first.box for c in wanting):
        return False
    if not procs.isdisjoint(term.proc for term in terms) or not tile([term.box for term in terms], first.box):
        return False
    arriving = [Delivery(copy.proc, term.box, (term,)) for copy, term in zip(wanting, terms, strict=True)]
    members = tuple([Term(term.sources, copy.proc, term.box) for copy, term in zip(wanting, terms, strict=True)])
    special = Special("all_gather", members, tuple(wanting), first.box)
    if general_seconds(t, arriving) + form_seconds(t, special) > general_seconds(t, component):
        return False
    landed = {(copy.proc, copy.box): t.add("staging", copy.box, copy.proc) for copy in arriving}
    transfer.general(t, arriving, landed)
    for copy, member in zip(arriving, members, strict=True):
        t.packs[member] = View(landed[copy.proc, copy.box], copy.box)
    emission.collective(t, special, copies)
    return True


def _split_into_groups(t: Transfer, component: list[Delivery], copies: dict[Read, int]) -> bool:
    """Split the copies into groups, by box or into the first of each processor, the second and so on, and use special
    forms for the groups that have one.

    Returns whether that was cheaper, and so was done.
    """
    for groups in (_by_box(component), _by_place(component)):
        if len(groups) < 2:
            continue
        each = [(some, special_of(t, some) or _sum_for_some(t, some)) for some in groups]
        found = [special for _, special in each if special and special.form in t.forms]
        if not found:
            continue
        rest = [some for some, special in each if not (special and special.form in t.forms)]
        others = general_seconds(t, [copy for some in rest for copy in some])
        if sum(form_seconds(t, special) for special in found) + others <= general_seconds(t, component):
            for special in found:
                _collective_for(t, special, copies)
            for some in rest:
                _transfer(t, some, copies)
            return True
    return False


def _gather_widened(t: Transfer, component: list[Delivery], copies: dict[Read, int]) -> bool:
    """Widen all copies to their bounding box, and all-gather the first source of each processor, then the second and so
    on: in causal attention each position reads the keys before it, and the last reads all.

    Returns whether that was cheaper, and so was done. Copies then hold elements that nobody reads.
    """
    boxes, wanting = {copy.box for copy in component}, {copy.proc for copy in component}
    if "all_gather" not in t.forms or len(boxes) < 2 or len(wanting) < len(component):
        return False
    frame = bounding(boxes)
    members = sorted({m for copy in component for m in copy.members}, key=lambda m: (m.box, m.proc))
    rounds, having = _each_once(members), {m.proc for m in members}
    if frame.volume * len(having) > MOST_WIDENING * sum(copy.box.volume for copy in component):
        return False
    around = [bounding({m.box for m in some}) for some in rounds]
    each = [len(some) == len(having) and tile([m.box for m in some], box) for some, box in zip(rounds, around)]
    if not all(each) or not tile(around, frame) or not wanting <= having:
        return False
    every = [
        Special("all_gather", tuple(some), tuple([Delivery(m.proc, box, tuple(some)) for m in some]), box)
        for some, box in zip(rounds, around, strict=True)
    ]
    put = 2 * frame.volume * t.itemsize / t.links.copy_bytes_per_second if len(every) > 1 else 0.0
    if sum(form_seconds(t, special) for special in every) + put > general_seconds(t, component):
        return False
    made = dict[tuple[int, Box], int]()
    for copy in component:
        piece = made[copy.proc, frame] = copies[copy.proc, copy.box]
        t.pieces[piece] = structs.replace(t.pieces[piece], box=frame)
    landed = [_collective_for(t, special, made) for special in every]
    for copy in component if len(every) > 1 else ():
        views = [(View(of[copy.proc, box], box), box) for of, box in zip(landed, around, strict=True)]
        transfer.add_up(t, Kind.FOLD, "fold", copy.proc, View(made[copy.proc, frame], frame), views)
    return True


def _sum_widened(t: Transfer, component: list[Delivery], copies: dict[Read, int]) -> bool:
    """Widen all contributions to all copies, with zeros, and reduce-scatter the first copy of each processor, then the
    second and so on: in causal attention each position has gradients of the keys before it.

    Returns whether that was cheaper, and so was done. It is not tried where there are no more messages than members:
    then hardly any waits for another.
    """
    if "reduce_scatter" not in t.forms:
        return False
    rounds, members = _by_place(component), sorted({m for copy in component for m in copy.members})
    given = [term.box.volume for copy in component for term in t.terms(copy)]
    if len({m.proc for m in members}) < len(members) or len(given) - len(component) <= len(members):
        return False
    frames = [bounding({copy.box for copy in some}) for some in rounds]
    if (volume := sum([box.volume for box in frames])) * len(members) > MOST_WIDENING * sum(given):
        return False
    givers = [tuple([m._replace(box=box) for m in members]) for box in frames]
    found = [
        special_of(t, [Delivery(c.proc, c.box, of) for c in some]) for some, of in zip(rounds, givers, strict=True)
    ]
    each = [special for special in found if special and special.form == "reduce_scatter"]
    took = sum(form_seconds(t, special) for special in each) + 2 * volume * t.itemsize / t.links.copy_bytes_per_second
    if len(each) < len(rounds) or took > general_seconds(t, component):
        return False
    for special in each:
        _collective_for(t, special, copies)
    return True


def _each_once(several: Sequence[Placed]) -> list[list[Placed]]:
    """Groups of the first item of each processor, the second and so on."""
    found: list[list[Placed]] = []
    places = Counter[int]()
    for one in several:
        if places[one.proc] == len(found):
            found.append([])
        found[places[one.proc]].append(one)
        places[one.proc] += 1
    return found


def _by_box(component: list[Delivery]) -> list[list[Delivery]]:
    found: dict[Box, list[Delivery]] = {}
    for copy in component:
        found.setdefault(copy.box, []).append(copy)
    return [*found.values()]


def _by_place(component: list[Delivery]) -> list[list[Delivery]]:
    """Groups of the first copy of each processor, the second and so on, in the order of their boxes."""
    return _each_once(sorted(component, key=lambda copy: (copy.box, copy.proc)))


def _sum_for_some(t: Transfer, component: list[Delivery]) -> Special | None:
    """An all-reduce of which only some members read the result, all of them the same box; None otherwise."""
    first = component[0]
    procs = {member.proc for member in first.members}
    if any(c.proc not in procs or c.box != first.box or c.members is not first.members for c in component):
        return None
    return sum_of_all(t, first)


def _collective_for(t: Transfer, special: Special, copies: dict[Read, int]) -> dict[Read, int]:
    """Emit a special form; results that nobody reads go to staging pieces. Returns the piece of each result."""
    unread = {(c.proc, c.box) for c in special.copies if c is not None}.difference(copies)
    staging = {read: t.add("staging", read[1], read[0]) for read in sorted(unread)}
    made = copies | staging if staging else copies
    emission.collective(t, special, made)
    return made

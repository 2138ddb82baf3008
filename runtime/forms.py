"""Special forms: the collective over a group that makes some copies, if there is one, and the times of forms.

It does not know how a form's task is emitted, nor what regions hold. Processors are slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import ceil, inf, log2
from operator import attrgetter
from typing import NamedTuple

from castile.runtime.machine import Level
from castile.runtime.region import Box, Overlaps, bounding, disjoint
from castile.runtime.transfer import Delivery, Term, Transfer

SPECIAL_FORMS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
# A reduce-scatter may have at most this many times as many members as readers.
MOST_MEMBERS = 2
# The time of the general form is computed for this many members of a copy first: that mostly decides.
DECISIVE = 8
# attrgetter is fast: groups have many members
_PROC = attrgetter("proc")


class Special(NamedTuple):
    """A special form: what each member contributes and receives, in group order, and the bounding box of all.

    copies   None for members that receive nothing, as in some reduce-scatters
    """

    form: str
    members: tuple[Term, ...]
    copies: tuple[Delivery | None, ...]
    around: Box

    @property
    def elements(self) -> int:
        """The elements of its cost key: those of the bounding box; of an all-to-all the most that a member sends."""
        return max(m.box.volume for m in self.members) if self.form == "all_to_all" else self.around.volume


def special_of(t: Transfer, component: list[Delivery]) -> Special | None:
    """The special form that makes all copies of a component; None if there is none."""
    by_proc = {c.proc: c for c in component}
    asking: dict[int, list[Delivery]] = {}
    for copy in component:
        asking.setdefault(id(copy.members), []).append(copy)
    keys = {(m.sources, m.proc) for each in asking.values() for m in each[0].members}
    procs = {proc for _, proc in keys}
    if len(procs) < len(keys) or len(by_proc) < len(component):
        return None
    if len(keys) != 1 and not (procs.issuperset(by_proc) and len(procs) <= MOST_MEMBERS * len(by_proc)):
        return None
    members = _contributed(t, list(asking.values()))
    around = bounding({c.box for c in component})
    if len(members) == 1:
        alike = len(component) > 1 and {c.box for c in component} == {members[0].box} and members[0].proc not in by_proc
        return Special("broadcast", members, tuple([by_proc[p] for p in sorted(by_proc)]), around) if alike else None
    if len(asking) > 1 and not _take_all(component, members):
        return None
    copies = tuple([by_proc.get(m.proc) for m in members])
    summed, gathered = (all([each.box == around for each in of]) for of in (members, component))
    if len(component) < len(members) and (gathered or not summed):
        return None
    if not (summed or tile([m.box for m in members], around)):
        return None
    if not (gathered or tile([c.box for c in component], around)):
        return None
    if summed:
        return Special("all_reduce" if gathered else "reduce_scatter", members, copies, around)
    return Special("all_gather" if gathered else "all_to_all", members, copies, around)


def _contributed(t: Transfer, asking: Sequence[Sequence[Delivery]]) -> tuple[Term, ...]:
    """Each member with the bounding box of all that it contributes.

    asking   the copies, those with the same members together
    """
    boxes: dict[tuple[tuple[int, ...], int], list[Box]] = {}
    for copies in asking:
        around = bounding({copy.box for copy in copies})
        # every copy overlaps every member, so the bounding box of their intersections is that of `around`
        terms = t.given(copies[0].members, around)
        if len(asking) == 1:
            return tuple(sorted(terms))
        for sources, proc, box in terms:
            boxes.setdefault((sources, proc), []).append(box)
    return tuple([Term(s, p, bounding(b)) for (s, p), b in sorted(boxes.items())])


def _take_all(component: Sequence[Delivery], members: Sequence[Term]) -> bool:
    """Whether every copy takes its part of all members that overlap its box: of replicas copies take only one."""
    overlaps = Overlaps(m.box for m in members)
    for copy in component:
        taken = {(m.sources, m.proc) for m in copy.members}
        if any((members[n].sources, members[n].proc) not in taken for n in overlaps.of(copy.box)):
            return False
    return True


def tile(boxes: list[Box], frame: Box) -> bool:
    return sum(b.volume for b in boxes) == frame.volume and disjoint(boxes)


def sum_of_all(t: Transfer, copy: Delivery) -> Special | None:
    """An all-reduce among the members of a copy, where each contributes to all of it; None otherwise."""
    terms = t.terms(copy)
    if len({term.proc for term in terms}) < max(2, len(terms)) or any(term.box != copy.box for term in terms):
        return None
    members = tuple(sorted(terms))
    return Special("all_reduce", members, tuple([Delivery(m.proc, copy.box, copy.members) for m in members]), copy.box)


# Times: alpha-beta, with the bytes that copies and sums touch.


def seconds(form: str, nbytes: float, members: int, level: Level) -> float:
    """The alpha-beta time of a form (Thakur, Rabenseifner, Gropp 2005): `nbytes` as in CostKey, `members` of the group.

    A collective also has the level's overhead of each message, at both ends, and of each round.
    """
    alpha, beta, n = level.latency_seconds, nbytes / level.bytes_per_second, members
    if form == "move":
        return alpha + beta
    alpha, once = alpha + 2 * level.message_seconds, level.collective_seconds
    if form == "broadcast":
        return once + ceil(log2(n)) * (alpha + beta)
    rounds = 2 if form == "all_reduce" else 1
    return rounds * (once + (n - 1) * (alpha + beta / n))


def form_seconds(t: Transfer, special: Special) -> float:
    ends = chain.from_iterable(zip(special.members, special.copies))
    procs = tuple(dict.fromkeys(map(_PROC, filter(None, ends))))
    n = max(len(procs), len(special.copies) + (special.form == "broadcast"))
    nbytes = special.elements * t.itemsize
    folded = 3 * nbytes / t.links.copy_bytes_per_second if special.form in ("all_reduce", "reduce_scatter") else 0.0
    level = t.links.level(procs)
    took = seconds(special.form, nbytes, n, level)
    if t.links.has_trees and special.form == "all_reduce":
        # up a tree and down again; a broadcast uses a tree anyway
        took = min(took, 2 * seconds("broadcast", nbytes, n, level))
    return took + folded + t.links.task_seconds


def is_cheaper(t: Transfer, special: Special, component: list[Delivery]) -> bool:
    """Whether a special form takes no longer than the general one."""
    form, first = form_seconds(t, special), component[0]
    # a few members of one copy mostly decide
    some = [Delivery(first.proc, first.box, first.members[:DECISIVE])]
    return form <= general_seconds(t, some, form) or form <= general_seconds(t, component, form)


def general_seconds(t: Transfer, component: list[Delivery], enough: float = inf) -> float:
    """The time of the general form: that of the busiest processor's sends, or of its receives and sums, in sequence.

    enough   a time beyond which any result will do
    """
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

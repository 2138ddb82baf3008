"""Emission of special forms: one collective task over a group, with the tasks that pack before and unpack after it.

It does not know whether a form is cheaper. Processors are slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from castile.runtime import runs, transfer
from castile.runtime.forms import Special
from castile.runtime.placement import Read
from castile.runtime.region import Box, intersect, whole
from castile.runtime.runs import Run
from castile.runtime.task import View
from castile.runtime.transfer import Delivery, Term, Transfer

# For each member of a group an array, or None.
Views = tuple[View | None, ...]


class _Exchange(NamedTuple):
    """What each member of a group sends and receives, and its scratch memory for sums.

    counts   [member][member]: the elements sent from the one to the other
    runs     for each member the contiguous pieces that it receives and has to unpack, None where it has not; empty
             where no member has
    """

    group: tuple[int, ...]
    send: Views
    receive: Views
    scratch: Views
    counts: tuple[tuple[int, ...], ...]
    runs: Sequence[Run | None] = ()


def collective(t: Transfer, special: Special, targets: Mapping[Read, int]) -> None:
    """Emit the tasks of a special form.

    targets   the piece of each copy, by processor and box
    """
    ends = tuple([None if c is None else View(targets[c.proc, c.box], c.box) for c in special.copies])
    exchange = _EXCHANGES[special.form](t, special, ends)
    transfer.emit(t, special.form, *exchange[:5], special.elements)
    for proc, run, landed, end in zip(exchange.group, exchange.runs, exchange.receive, ends, strict=False):
        if run is not None and landed is not None and end is not None:
            runs.unpack(t, proc, run, landed, end)


def _broadcast(t: Transfer, special: Special, ends: Views) -> _Exchange:
    (root,), nothing = special.members, (None,) * len(ends)
    group = (root.proc, *[copy.proc for copy in _copies_of(special)])
    counts = ((root.box.volume,) * len(group),) * len(group)
    send = (transfer.packed(t, root, unbroken=True), *nothing)
    return _Exchange(group, send, (None, *ends), (None, *nothing), counts)


def _all_reduce(t: Transfer, special: Special, ends: Views) -> _Exchange:
    group, n = _members(special), len(special.members)
    each, left = divmod(special.elements, n)
    counts = (tuple([each + (j < left) for j in range(n)]),) * n
    send = tuple([transfer.packed(t, m, unbroken=True) for m in special.members])
    # Equal scratch memory for all, so that members do not differ by an element where the division is uneven.
    return _Exchange(group, send, ends, _room(t, group, [max(counts[0])] * n), counts)


def _reduce_scatter(t: Transfer, special: Special, ends: Views) -> _Exchange:
    group, n = _members(special), len(special.members)
    counts = (tuple([copy.box.volume if copy else 0 for copy in special.copies]),) * n
    send = _sent(t, special.members, [[copy.box for copy in _copies_of(special)]] * n)
    return _Exchange(group, send, ends, _room(t, group, counts[0]), counts)


def _all_gather(t: Transfer, special: Special, ends: Views) -> _Exchange:
    group, n = _members(special), len(special.members)
    pieces = [member.box for member in special.members]
    counts = tuple([(piece.volume,) * n for piece in pieces])
    send = tuple([transfer.packed(t, m, unbroken=True) for m in special.members])
    receive, taken = _landed(t, _copies_of(special), [pieces] * n, ends)
    return _Exchange(group, send, receive, (None,) * n, counts, taken)


def _all_to_all(t: Transfer, special: Special, ends: Views) -> _Exchange:
    copies = _copies_of(special)
    rows = [[intersect(member.box, copy.box) for copy in copies] for member in special.members]
    counts = tuple([tuple([piece.volume if piece else 0 for piece in row]) for row in rows])
    send = _sent(t, special.members, [[*filter(None, row)] for row in rows])
    columns = [[*filter(None, column)] for column in zip(*rows, strict=True)]
    receive, taken = _landed(t, copies, columns, ends)
    return _Exchange(_members(special), send, receive, (None,) * len(rows), counts, taken)


_EXCHANGES: Mapping[str, Callable[[Transfer, Special, Views], _Exchange]] = {
    "broadcast": _broadcast,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
}


def _members(special: Special) -> tuple[int, ...]:
    return tuple([member.proc for member in special.members])


def _copies_of(special: Special) -> list[Delivery]:
    return [copy for copy in special.copies if copy is not None]


def _sent(t: Transfer, members: Sequence[Term], pieces: Sequence[list[Box]]) -> tuple[View, ...]:
    """Each member's contribution as one flat array, in the order of the pieces that the others receive."""
    sent = []
    for member, run in zip(members, runs.of(pieces, [m.box for m in members]), strict=True):
        view = transfer.packed(t, member, unbroken=run is None)
        sent.append(view if run is None else runs.laid_out(t, member.proc, view, run))
    return tuple(sent)


def _landed(
    t: Transfer, copies: Sequence[Delivery], pieces: Sequence[list[Box]], ends: Views
) -> tuple[Views, list[Run | None]]:
    """The view into which each member receives, and its run to unpack where that is not the copy itself."""
    taken = runs.of(pieces, [copy.box for copy in copies])
    rows = zip(copies, taken, ends, strict=True)
    return tuple([end if run is None else runs.landing(t, copy.proc, run) for copy, run, end in rows]), taken


def _room(t: Transfer, group: Sequence[int], elements: Sequence[int]) -> Views:
    """Scratch memory for what all others send to each member, `elements` from each."""
    boxes = {count: whole(((len(group) - 1) * count,)) for count in set(elements)}
    rooms = {count: box if box.volume else None for count, box in boxes.items()}
    each = zip(map(rooms.__getitem__, elements), group, strict=True)
    return tuple([None if box is None else View(t.add("staging", box, proc), box) for box, proc in each])

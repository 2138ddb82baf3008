"""Transfers between processors of one process on one device: copies and sums, each on the stream of who receives.

It does not know what they are for, nor what they come after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from castile.runtime.backends.cuda.streams import Phase
from castile.runtime.worker import Action


@dataclass(frozen=True, eq=False)
class Member:
    """A processor's part in a transfer: flat arrays as in `Comm`, the stream of its transfers.

    add   makes the call that puts out = a + b onto that stream; out may be a
    """

    send: Any
    receive: Any
    stream: Any
    add: Callable[[Any, Any, Any], Action]


Counts = Sequence[Sequence[int]]


def phases(form: str, members: Sequence[Member], counts: Counts) -> list[Phase]:
    """What a transfer between these members puts onto their streams; see `Comm` in task.py for form and counts."""
    return _FORMS[form](members, counts)


def put(target: Any, source: Any, stream: Any) -> None:
    """Puts a copy of one array to another onto the stream."""
    target.data.copy_from_device_async(source.data, source.nbytes, stream)


def _copies(member: Member, parts: Sequence[tuple[Any, Any]]) -> Phase:
    """Copies (to, from), but for what has no elements."""
    return [(member.stream, partial(put, to, of, member.stream)) for to, of in parts if of.size]


def _sum(member: Member, out: Any, parts: Sequence[Any]) -> Phase:
    """out = (parts[0] + parts[1]) + parts[2] ..."""
    if len(parts) == 1:
        return _copies(member, [(out, parts[0])])
    pairs = [(parts[0], parts[1]), *((out, part) for part in parts[2:])]
    return [(member.stream, member.add(a, b, out)) for a, b in pairs]


def _pieces(array: Any, sizes: Sequence[int]) -> list[Any]:
    """The array's consecutive pieces of those sizes; a member that has no array has no elements."""
    return [array if array is None else array[end - size : end] for size, end in zip(sizes, accumulate(sizes))]


def _move(members: Sequence[Member], counts: Counts) -> list[Phase]:
    source, destination = members
    return [_copies(destination, [(destination.receive, source.send)])]


def _broadcast(members: Sequence[Member], counts: Counts) -> list[Phase]:
    wanting = [member for member in members if member.receive is not None]
    return [[each for member in wanting for each in _copies(member, [(member.receive, members[0].send)])]]


def _all_reduce(members: Sequence[Member], counts: Counts) -> list[Phase]:
    """Each member sums one piece, and then fetches the others."""
    sizes = counts[0]
    sent = [_pieces(member.send, sizes) for member in members]
    results = [_pieces(member.receive, sizes) for member in members]
    sums, copies = list[tuple[Any, Action]](), list[tuple[Any, Action]]()
    for me, member in enumerate(members):
        if sizes[me]:
            sums += _sum(member, results[me][me], [pieces[me] for pieces in sent])
        others = [n for n, size in enumerate(sizes) if n != me and size]
        copies += _copies(member, [(results[me][n], results[n][n]) for n in others])
    return [sums, copies]


def _reduce_scatter(members: Sequence[Member], counts: Counts) -> list[Phase]:
    """Each member sums what all have for it."""
    sent = [_pieces(member.send, sizes) for member, sizes in zip(members, counts)]
    sums = list[tuple[Any, Action]]()
    for me, member in enumerate(members):
        parts = [sent[n][me] for n, row in enumerate(counts) if row[me]]
        sums += _sum(member, member.receive, parts) if parts else []
    return [sums]


def _all_gather(members: Sequence[Member], counts: Counts) -> list[Phase]:
    """Each member fetches the one piece of each."""
    return _fetched(members, counts, [[member.send] * len(members) for member in members])


def _all_to_all(members: Sequence[Member], counts: Counts) -> list[Phase]:
    """Each member fetches from each what it has for it."""
    return _fetched(members, counts, [_pieces(member.send, sizes) for member, sizes in zip(members, counts)])


def _fetched(members: Sequence[Member], counts: Counts, sent: Sequence[Sequence[Any]]) -> list[Phase]:
    """sent[n][me], of which member n has counts[n][me] elements for me, in group order at each member."""
    copies = list[tuple[Any, Action]]()
    for me, member in enumerate(members):
        sizes = [row[me] for row in counts]
        results = _pieces(member.receive, sizes)
        copies += _copies(member, [(results[n], sent[n][me][:size]) for n, size in enumerate(sizes) if size])
    return [copies]


_FORMS: dict[str, Callable[[Sequence[Member], Counts], list[Phase]]] = {
    "move": _move,
    "broadcast": _broadcast,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
}

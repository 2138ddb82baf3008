"""The collective forms as small state machines over messages: each yields the requests that it must wait for.

They do not know what carries a message. Nobody sends what has no elements: both sides know the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from castile.runtime.comm.messages import Messenger, Request

Steps = Iterator[list[Request]]


@dataclass(slots=True)
class Part:
    """One member's part in a collective, flat arrays as in `Comm`; None where the member has none."""

    end: Messenger
    group: Sequence[int]
    me: int
    send: np.ndarray | None
    receive: np.ndarray | None
    scratch: np.ndarray | None
    counts: Sequence[Sequence[int]]
    tag: int

    @property
    def others(self) -> list[int]:
        """The other members, each member beginning with its successor, so that not all send to one at once."""
        size = len(self.group)
        return [(self.me + hop) % size for hop in range(1, size)]

    def put(self, array: np.ndarray, member: int) -> Request:
        return self.end.send(array, self.group[member], self.tag)

    def get(self, array: np.ndarray, member: int) -> Request:
        return self.end.recv(array, self.group[member], self.tag)


def steps(form: str, part: Part) -> Steps:
    """The state machine of that form."""
    assert form in _FORMS, f"no collective form {form!r}"
    return _FORMS[form](part)


def _all_reduce(part: Part) -> Steps:
    """Each member sums one piece and hands it to all: 2 (n-1)/n of the bytes leave a member, as in a ring."""
    send, receive = _arrays(part)
    sizes, me = part.counts[0], part.me
    pieces, results = _split(send, sizes), _split(receive, sizes)
    contributions, arrivals = _collect(part, pieces[me], [sizes[me]] * len(sizes))
    # Posted now, matched second: messages of one tag keep their order.
    rest = [part.get(results[j], j) for j in part.others if sizes[j]]
    rest += [part.put(pieces[j], j) for j in part.others if sizes[j]]
    yield arrivals
    if contributions:
        _fold(results[me], contributions)
        rest += [part.put(results[me], j) for j in part.others]
    yield rest


def _reduce_scatter(part: Part) -> Steps:
    """Each member sums the pieces that all send to it."""
    send, receive = _arrays(part)
    sizes = part.counts[part.me]
    pieces = _split(send, sizes)
    contributions, arrivals = _collect(part, pieces[part.me], [row[part.me] for row in part.counts])
    departures = [part.put(pieces[j], j) for j in part.others if sizes[j]]
    yield arrivals
    if contributions:
        _fold(receive, contributions)
    yield departures


def _all_gather(part: Part) -> Steps:
    """Each member sends its one piece to all; the pieces lie in group order in each result."""
    send, receive = _arrays(part)
    yield _deliver(part, [send[:count] for count in part.counts[part.me]], receive)


def _all_to_all(part: Part) -> Steps:
    """Each member sends another piece to each; the pieces lie in group order in each result."""
    send, receive = _arrays(part)
    yield _deliver(part, _split(send, part.counts[part.me]), receive)


def _broadcast(part: Part) -> Steps:
    """Down a binomial tree from member 0: whoever has the data sends it on, the largest subtree first."""
    send, receive = _arrays(part)
    size, me, reach = len(part.group), part.me, 1
    while reach < size and not me & reach:
        reach *= 2
    data = receive if me else send
    if me:
        yield [part.get(data, me - reach)] if data.size else []
    elif receive.size:
        np.copyto(receive, data)
    children = [me + reach // 2**hop for hop in range(1, reach.bit_length())]
    yield [part.put(data, child) for child in children if child < size and data.size]


def _arrays(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """What is sent and what is received, empty where the member has none."""
    some = part.receive if part.send is None else part.send
    assert some is not None, "a member that neither sends nor receives does not belong to the group"
    return some[:0] if part.send is None else part.send, some[:0] if part.receive is None else part.receive


def _split(array: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """The array's consecutive pieces of those sizes."""
    return [array[end - size : end] for size, end in zip(sizes, accumulate(sizes))]


def _collect(part: Part, own: np.ndarray, sizes: Sequence[int]) -> tuple[list[np.ndarray], list[Request]]:
    """All members' contributions in group order (the others' come into scratch), and the requests that bring them."""
    memory = own[:0] if part.scratch is None else part.scratch
    slots = _split(memory, [0 if j == part.me else size for j, size in enumerate(sizes)])
    slots[part.me] = own
    contributions = [slot for slot, size in zip(slots, sizes) if size]
    assert all(len(slot) == len(contributions[0]) for slot in contributions), "what is summed, or scratch, is too short"
    return contributions, [part.get(slots[j], j) for j in part.others if sizes[j]]


def _fold(out: np.ndarray, parts: list[np.ndarray]) -> None:
    """out = (parts[0] + parts[1]) + parts[2] ..., elementwise, in this order."""
    if len(parts) == 1:
        np.copyto(out, parts[0])
        return
    np.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        np.add(out, part, out=out)


def _deliver(part: Part, pieces: list[np.ndarray], receive: np.ndarray) -> list[Request]:
    """Sends each member its piece; what comes lies in group order in `receive`."""
    me = part.me
    results = _split(receive, [row[me] for row in part.counts])
    requests = [part.get(results[j], j) for j in part.others if part.counts[j][me]]
    requests += [part.put(pieces[j], j) for j in part.others if part.counts[me][j]]
    if part.counts[me][me]:
        np.copyto(results[me], pieces[me])
    return requests


_FORMS: dict[str, Callable[[Part], Steps]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
}

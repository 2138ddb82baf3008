"""The collective forms as small state machines over messages: each yields the requests that it must wait for.

All that is the same each time is made once, before the first: pieces of arrays, and the calls that begin a message.
They do not know what carries a message. Nobody sends what has no elements: both sides know the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from castile.runtime.comm.messages import Messenger, Request

Steps = Iterator[list[Request]]
# Begins a message: to be called again only when the one that it began before is done.
Begin = Callable[[], Request]
# Adds up what has come.
Action = Callable[[], object]


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

    def put(self, array: np.ndarray, member: int) -> Begin:
        return self.end.sender(array, self.group[member], self.tag)

    def get(self, array: np.ndarray, member: int) -> Begin:
        return self.end.receiver(array, self.group[member], self.tag)


def prepared(form: str, part: Part) -> Callable[[], Steps]:
    """What makes the state machine of that form, once for each time that its members meet."""
    assert form in _FORMS, f"no collective form {form!r}"
    return _FORMS[form](part)


def _all_reduce(part: Part) -> Callable[[], Steps]:
    """Each member sums one piece and hands it to all: 2 (n-1)/n of the bytes leave a member, as in a ring."""
    send, receive = _arrays(part)
    sizes, me = part.counts[0], part.me
    pieces, results = _split(send, sizes), _split(receive, sizes)
    add, gets = _collect(part, pieces[me], results[me], [sizes[me]] * len(sizes))
    # Begun at once, matched second: messages of one tag keep their order.
    rest = [part.get(results[j], j) for j in part.others if sizes[j]]
    rest += [part.put(pieces[j], j) for j in part.others if sizes[j]]
    last = [part.put(results[me], j) for j in part.others if sizes[me]]
    return _summing(gets, rest, add, last)


def _reduce_scatter(part: Part) -> Callable[[], Steps]:
    """Each member sums the pieces that all send to it."""
    send, receive = _arrays(part)
    sizes = part.counts[part.me]
    pieces = _split(send, sizes)
    add, gets = _collect(part, pieces[part.me], receive, [row[part.me] for row in part.counts])
    puts = [part.put(pieces[j], j) for j in part.others if sizes[j]]
    return _summing(gets, puts, add)


def _summing(
    gets: Sequence[Begin], beside: Sequence[Begin], add: Sequence[Action], last: Sequence[Begin] = ()
) -> Callable[[], Steps]:
    """Adds up what `gets` bring while other messages go, then begins the last."""

    def steps() -> Steps:
        arrivals, others = _begun(gets), _begun(beside)
        yield arrivals
        for action in add:
            action()
        yield others + _begun(last)

    return steps


def _all_gather(part: Part) -> Callable[[], Steps]:
    """Each member sends its one piece to all; the pieces lie in group order in each result."""
    send, receive = _arrays(part)
    return _deliver(part, [send[:count] for count in part.counts[part.me]], receive)


def _all_to_all(part: Part) -> Callable[[], Steps]:
    """Each member sends another piece to each; the pieces lie in group order in each result."""
    send, receive = _arrays(part)
    return _deliver(part, _split(send, part.counts[part.me]), receive)


def _broadcast(part: Part) -> Callable[[], Steps]:
    """Down a binomial tree from member 0: whoever has the data sends it on, the largest subtree first."""
    send, receive = _arrays(part)
    size, me, reach = len(part.group), part.me, 1
    while reach < size and not me & reach:
        reach *= 2
    data = receive if me else send
    gets = [part.get(data, me - reach)] if me and data.size else []
    children = [me + reach // 2**hop for hop in range(1, reach.bit_length())]
    puts = [part.put(data, child) for child in children if child < size and data.size]
    copies = not me and receive.size

    def steps() -> Steps:
        if copies:
            np.copyto(receive, data)
        yield _begun(gets)
        yield _begun(puts)

    return steps


def _begun(calls: Sequence[Begin]) -> list[Request]:
    return [begin() for begin in calls]


def _arrays(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """What is sent and what is received, empty where the member has none."""
    some = part.receive if part.send is None else part.send
    assert some is not None, "a member that neither sends nor receives does not belong to the group"
    return some[:0] if part.send is None else part.send, some[:0] if part.receive is None else part.receive


def _split(array: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """The array's consecutive pieces of those sizes."""
    return [array[end - size : end] for size, end in zip(sizes, accumulate(sizes))]


def _collect(
    part: Part, own: np.ndarray, out: np.ndarray, sizes: Sequence[int]
) -> tuple[list[Action], list[Begin]]:
    """What adds all members' contributions up in group order, and the calls that bring the others' into scratch."""
    memory = own[:0] if part.scratch is None else part.scratch
    slots = _split(memory, [0 if j == part.me else size for j, size in enumerate(sizes)])
    slots[part.me] = own
    contributions = [slot for slot, size in zip(slots, sizes) if size]
    assert all(len(slot) == len(contributions[0]) for slot in contributions), "what is summed, or scratch, is too short"
    return _sums(out, contributions), [part.get(slots[j], j) for j in part.others if sizes[j]]


def _sums(out: np.ndarray, parts: list[np.ndarray]) -> list[Action]:
    """out = (parts[0] + parts[1]) + parts[2] ..., elementwise, in this order."""
    if len(parts) < 2:
        return [partial(np.copyto, out, part) for part in parts]
    return [partial(np.add, *parts[:2], out=out), *(partial(np.add, out, part, out=out) for part in parts[2:])]


def _deliver(part: Part, pieces: list[np.ndarray], receive: np.ndarray) -> Callable[[], Steps]:
    """Sends each member its piece; what comes lies in group order in `receive`."""
    me = part.me
    results = _split(receive, [row[me] for row in part.counts])
    calls = [part.get(results[j], j) for j in part.others if part.counts[j][me]]
    calls += [part.put(pieces[j], j) for j in part.others if part.counts[me][j]]
    keeps = part.counts[me][me]

    def steps() -> Steps:
        requests = _begun(calls)
        if keeps:
            np.copyto(results[me], pieces[me])
        yield requests

    return steps


_FORMS: dict[str, Callable[[Part], Callable[[], Steps]]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
}

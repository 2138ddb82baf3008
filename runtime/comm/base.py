"""What a communicator can do: non-blocking messages, collectives built of them, and a few blocking words between ranks.

It does not know tasks, and not what carries the bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from castile.runtime.comm import forms
from castile.runtime.comm.messages import DONE, Messenger, Request, Staged
from castile.runtime.task import AT_ONCE

# Transfers are numbered from one: what members tell each other besides them has this tag.
WORDS_TAG = 0


class Side(NamedTuple):
    """One member's side of a transfer: flat arrays of the host or of a device, the rest as in `Comm` in task.py."""

    form: str
    group: Sequence[int]
    send: Any
    receive: Any
    scratch: Any
    counts: Sequence[Sequence[int]]


class End(Messenger):
    """One end of messages and collectives between numbered peers."""

    def collective(
        self,
        form: str,
        group: Sequence[int],
        send: np.ndarray | None,
        receive: np.ndarray | None,
        scratch: np.ndarray | None,
        counts: Sequence[Sequence[int]],
        tag: int,
    ) -> Request:
        """Takes this end's part in a transfer over `group`; see `Comm` in task.py for form, counts and scratch.

        `send` and `receive` never overlap. Sums are (p0 + p1) + p2 ... in group order: alike everywhere.
        """
        return self.prepared([Side(form, group, send, receive, scratch, counts)], tag)()

    def prepared(self, sides: Sequence[Side], tag: int) -> Callable[[], Request]:
        """Transfers that begin together, as a call, to be made again only when the request it gave before is done.

        Where there are several, all are of AT_ONCE.
        """
        if len(sides) == 1:
            return self._prepared(sides[0], tag)
        assert all(side.form in AT_ONCE for side in sides), "messages of one tag would get out of order"
        calls = [self._prepared(side, tag) for side in sides]
        return lambda: Staged(iter([[call() for call in calls]]))

    def streamed(self, sides: Sequence[Side], tag: int, stream: Any) -> Callable[[], None] | None:
        """Transfers between the same peers that begin together, on a device's arrays, as a call that puts them onto a
        stream of that device and returns at once.

        Every member asks for its transfers in the one order that all share, once each, before the first step: they may
        meet here. None where this end can only be polled.
        """
        return None

    def before_ending(self, let_go: Callable[[], None]) -> None:
        """Has this called before what can be put onto streams ends, be it that this end fails or is no more.

        Whoever has captured calls of `streamed` asks for it, and lets go of them then. It is kept as long as this end.
        """

    def check(self) -> None:
        """Raises RuntimeError where something that was put onto a stream has failed, which nobody else would notice."""

    def _prepared(self, side: Side, tag: int) -> Callable[[], Request]:
        if side.form == "move":
            return self._move(side, tag)
        part = forms.Part(self, side.group, side.group.index(self.rank), *side[2:], tag)
        steps = forms.prepared(side.form, part)
        return lambda: Staged(steps())

    def _move(self, side: Side, tag: int) -> Callable[[], Request]:
        source, destination = side.group
        if source == destination:
            assert side.send is not None and side.receive is not None
            return partial(_copied, side.receive, side.send)
        if self.rank == source:
            assert side.send is not None
            return self.sender(side.send, destination, tag)
        assert side.receive is not None
        return self.receiver(side.receive, source, tag)


def _copied(receive: np.ndarray, send: np.ndarray) -> Request:
    np.copyto(receive, send)
    return DONE


class Aside(ABC):
    """Notes of a few bytes between the ranks of a job, beside all else that they send; whoever waits may tell them.

    hosts    the name of each rank's host
    attend   is called again and again while this rank waits for others in what all of them come to; None where it may
             well wait for long
    met      how often all have come to it while `attend` was called
    """

    rank: int
    hosts: tuple[str, ...]
    attend: Callable[[], None] | None = None
    met: int = 0

    @abstractmethod
    def tell(self, note: bytes) -> None:
        """Send a note to all other ranks, and wait for none of them."""

    @abstractmethod
    def received(self) -> dict[int, bytes]:
        """The last note of each rank that has sent any since this was asked, by rank."""


class Communicator(End):
    """A rank among `size` ranks, which are numbered host by host.

    host                    the name of the machine this rank runs on; two may have one name
    host_index              which of the job's hosts that is, in the order of ranks
    host_sizes              how many ranks each host has
    local_rank, local_size  its place among the ranks on that host
    near                    these ranks among themselves
    crowded                 whether the ranks on that host are more than the cores that they may use
    epoch_ns                this rank's perf_counter_ns at one moment that all ranks share
    aside                   carries notes to ranks that may not answer; None where all are this process
    """

    size: int
    host: str
    host_index: int = 0
    host_sizes: tuple[int, ...]
    local_rank: int
    local_size: int
    near: Communicator
    crowded: bool = False
    epoch_ns: int
    aside: Aside | None = None

    @abstractmethod
    def barrier(self) -> None:
        """Returns when every rank has come here."""

    @abstractmethod
    def bcast_bytes(self, data: bytes | None, root: int = 0) -> bytes:
        """The root's data, on every rank."""

    @abstractmethod
    def gather_bytes(self, data: bytes, root: int = 0) -> list[bytes] | None:
        """Every rank's data in rank order on the root, None elsewhere."""

    @abstractmethod
    def relax(self, empty_polls: int) -> None:
        """Gives the core away after that many polls in a row that found nothing."""

    @abstractmethod
    def abort(self, status: int) -> None:
        """Ends all ranks with that exit status."""

    def align_clocks(self) -> None:
        """Sets `epoch_ns` anew where clocks of several hosts may have drifted apart since; all ranks call it."""

    def wait(self, *requests: Request) -> None:
        """Returns when all are done; polls each of them, since one may need another's progress."""
        pending, empty_polls = list(requests), 0
        while pending:
            left = [request for request in pending if not request.poll()]
            empty_polls = empty_polls + 1 if len(left) == len(pending) else 0
            pending = left
            if empty_polls:
                self.relax(empty_polls)

"""All ranks in one process, taking turns: no threads, no copies but one, the oracle of the other communicators.

It does not know who takes turns; what would have to wait for another rank's turn says so.
"""

from __future__ import annotations

import socket
from collections import defaultdict, deque
from time import perf_counter_ns

import numpy as np

from castile.runtime.comm.base import Communicator
from castile.runtime.comm.messages import DONE, Request

# A poll may have got a step further without anything having come to its end; this often in a row it has not.
PATIENCE = 4


class _Arrival(Request):
    """A message that is waited for."""

    __slots__ = ("_array", "_done")

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self._done = False

    def deliver(self, message: np.ndarray) -> None:
        assert message.nbytes == self._array.nbytes, f"{message.nbytes} bytes came for {self._array.nbytes}"
        self._array.view(np.uint8)[:] = message
        self._done = True

    def poll(self) -> bool:
        return self._done


class _Mailbox:
    """The messages from one rank to another under one tag: those that came early, or those that are waited for."""

    __slots__ = ("early", "waiting")

    def __init__(self) -> None:
        self.early: deque[np.ndarray] = deque()
        self.waiting: deque[_Arrival] = deque()


class LocalWorld:
    """`size` ranks in this process: `communicators[rank]`."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a world needs at least one rank, not {size}")
        self.size = size
        self.mailboxes: defaultdict[tuple[int, int, int], _Mailbox] = defaultdict(_Mailbox)
        self.letters: defaultdict[tuple[int, int], deque[bytes]] = defaultdict(deque)
        self.epoch_ns = perf_counter_ns()
        self.communicators = tuple(LocalCommunicator(self, rank) for rank in range(size))

    @property
    def quiet(self) -> bool:
        """True where no message lies about and nobody waits for one."""
        return not any(box.early or box.waiting for box in self.mailboxes.values())


class LocalCommunicator(Communicator):
    """A rank of a LocalWorld."""

    def __init__(self, world: LocalWorld, rank: int) -> None:
        self._world = world
        self.rank = self.local_rank = rank
        self.size = self.local_size = world.size
        self.host, self.host_sizes, self.near = socket.gethostname(), (world.size,), self
        self.epoch_ns = world.epoch_ns

    def send(self, array: np.ndarray, peer: int, tag: int) -> Request:
        box = self._world.mailboxes[self.rank, peer, tag]
        message = array.view(np.uint8)
        if box.waiting:
            box.waiting.popleft().deliver(message)
        else:
            box.early.append(message.copy())
        return DONE

    def recv(self, array: np.ndarray, peer: int, tag: int) -> Request:
        box = self._world.mailboxes[peer, self.rank, tag]
        arrival = _Arrival(array)
        if box.early:
            arrival.deliver(box.early.popleft())
        else:
            box.waiting.append(arrival)
        return arrival

    def barrier(self) -> None:
        """Nothing to wait for: ranks take turns."""

    def bcast_bytes(self, data: bytes | None, root: int = 0) -> bytes:
        """The root must have had its turn first."""
        if self.rank == root:
            assert data is not None, "the root of a broadcast has no data"
            for peer in range(self.size):
                self._world.letters[root, peer].append(data)
        return self._letter(root, self.rank)

    def gather_bytes(self, data: bytes, root: int = 0) -> list[bytes] | None:
        """The root must have its turn last."""
        self._world.letters[self.rank, root].append(data)
        if self.rank != root:
            return None
        return [self._letter(peer, root) for peer in range(self.size)]

    def _letter(self, source: int, destination: int) -> bytes:
        letters = self._world.letters[source, destination]
        if not letters:
            raise RuntimeError(f"rank {destination} would wait for ever: rank {source} has not had its turn")
        return letters.popleft()

    def relax(self, empty_polls: int) -> None:
        if empty_polls < PATIENCE:
            return
        raise RuntimeError(f"rank {self.rank} would wait for ever: ranks of one process must take turns (run_local)")

    def abort(self, status: int) -> None:
        raise SystemExit(status)

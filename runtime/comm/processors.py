"""Processors as ends of messages, where a rank has several of them.

It does not know tasks; where each rank has one processor, the communicator itself is the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from castile.runtime.comm.base import Communicator, End
from castile.runtime.comm.messages import Request
from castile.runtime.region import blocks


def rank_of(num_procs: int, size: int) -> tuple[int, ...]:
    """The rank of each processor: one each where there are ranks enough, else runs of neighbours."""
    if size >= num_procs:
        return tuple(range(num_procs))
    return tuple(rank for rank, (begin, end) in enumerate(blocks(num_procs, size)) for _ in range(begin, end))


def end_of(comm: Communicator, proc: int, ranks: Sequence[int]) -> End:
    """The end of processor `proc`, with processor p on rank ranks[p]."""
    assert ranks[proc] == comm.rank, f"processor {proc} belongs to rank {ranks[proc]}, not {comm.rank}"
    return comm if all(rank == p for p, rank in enumerate(ranks)) else _ProcessorEnd(comm, proc, ranks)


class _ProcessorEnd(End):
    """One of several processors of a rank: the tag also tells which of a rank's processors is meant."""

    def __init__(self, comm: Communicator, proc: int, ranks: Sequence[int]) -> None:
        self._comm = comm
        self.rank = proc
        self._ranks = ranks
        seen = [0] * comm.size
        self._slot = []
        for rank in ranks:
            self._slot.append(seen[rank])
            seen[rank] += 1
        self._stride = max(seen)

    def send(self, array: np.ndarray, peer: int, tag: int) -> Request:
        return self._comm.send(array, self._ranks[peer], self._tag(tag, self.rank, peer))

    def recv(self, array: np.ndarray, peer: int, tag: int) -> Request:
        return self._comm.recv(array, self._ranks[peer], self._tag(tag, peer, self.rank))

    def sender(self, array: np.ndarray, peer: int, tag: int) -> Callable[[], Request]:
        return self._comm.sender(array, self._ranks[peer], self._tag(tag, self.rank, peer))

    def receiver(self, array: np.ndarray, peer: int, tag: int) -> Callable[[], Request]:
        return self._comm.receiver(array, self._ranks[peer], self._tag(tag, peer, self.rank))

    def _tag(self, tag: int, source: int, destination: int) -> int:
        return (tag * self._stride + self._slot[source]) * self._stride + self._slot[destination]

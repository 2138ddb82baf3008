"""Ranks as MPI processes: the one room that imports mpi4py.

It does not know tasks. Every wait polls, so that a rank that waits still serves what others need from it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Any

import mpi4py
import numpy as np

from castile.runtime import cores
from castile.runtime.comm.base import Aside, Communicator
from castile.runtime.comm.messages import DONE, Request

# One thread at a time calls MPI: without the locks of "multiple" each call is cheaper. No effect if MPI already runs.
mpi4py.rc.thread_level = "serialized"
try:
    from mpi4py import MPI
except RuntimeError as error:
    raise ImportError(f"mpi4py finds no MPI library ({error}); install one with: pip install 'castile[mpi]'") from error

PING_PONGS = 50
# About a millisecond of polling; a wake-up costs more than most messages, so sleep only when the wait is long.
POLLS_BEFORE_SLEEP = 500
POLLS_BEFORE_SLEEP_CROWDED = 20
SHORTEST_SLEEP_SECONDS = 20e-6
LONGEST_SLEEP_SECONDS = 500e-6
# MPI keeps a copy of messages up to about this length, where `launch` has set it: they have gone when they are begun.
EAGER_BYTES = 65536


@lru_cache(maxsize=1)
def world() -> MpiCommunicator:
    """The communicator of all ranks that were started together; every rank must call it.

    However a launcher has dealt ranks out, those of a host are numbered one after the other: neighbours are near.
    """
    launched = MPI.COMM_WORLD
    near = launched.Split_type(MPI.COMM_TYPE_SHARED, launched.rank)
    host = near.allreduce(launched.rank, op=MPI.MIN)
    near.Free()
    # of those with one key the order stays
    return MpiCommunicator(launched.Split(key=host))


class _Message(Request):
    """A message under way; mpi4py's request keeps its buffer alive."""

    __slots__ = ("_test",)

    def __init__(self, request: MPI.Request) -> None:
        self._test = request.Test

    def poll(self) -> bool:
        return self._test()


class _Repeated(Request):
    """A message that MPI was told of once and that is begun again and again, which costs a third of a new one."""

    __slots__ = ("__weakref__", "_start", "_test")

    def __init__(self, request: MPI.Prequest, discarded: list[MPI.Prequest]) -> None:
        self._start, self._test = request.Start, request.Test
        # whoever drops us may be any thread, and one at a time calls MPI
        weakref.finalize(self, discarded.append, request).atexit = False

    def begin(self) -> Request:
        self._start()
        return self

    def begin_eager(self) -> Request:
        """The same of what has mostly gone at once."""
        self._start()
        return DONE if self._test() else self

    def poll(self) -> bool:
        return self._test()


class _Notes(Aside):
    """Notes as messages of an MPI communicator of their own, so short that MPI keeps a copy."""

    def __init__(self, comm: MPI.Comm, host: str) -> None:
        self._comm = comm.Dup()
        self.rank, self.hosts = comm.Get_rank(), tuple(comm.allgather(host))
        self._under_way: list[MPI.Request] = []

    def tell(self, note: bytes) -> None:
        self._under_way = [request for request in self._under_way if not request.Test()]
        data = np.frombuffer(note, np.uint8)
        others = (peer for peer in range(len(self.hosts)) if peer != self.rank)
        self._under_way += [self._comm.Isend((data, MPI.BYTE), peer) for peer in others]

    def received(self) -> dict[int, bytes]:
        found, status = {}, MPI.Status()
        while self._comm.Iprobe(status=status):
            note = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._comm.Recv((note, MPI.BYTE), status.Get_source())
            found[status.Get_source()] = note.tobytes()
        return found


class MpiCommunicator(Communicator):
    """A rank of an MPI communicator, which must be its own alone."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.host = MPI.Get_processor_name()
        self.aside: Aside = _Notes(comm, self.host)
        near = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = near.Get_rank(), near.Get_size()
        hosts = comm.allgather(near.allreduce(self.rank, op=MPI.MIN))
        assert hosts == sorted(hosts), f"ranks are not numbered host by host: {hosts}"
        self.host_sizes = tuple(Counter(hosts).values())
        self.host_index = len(set(hosts[: self.rank + 1])) - 1
        self.near = self if self.local_size == self.size else MpiCommunicator(near)
        if self.near is self:
            near.Free()
        highest = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
        assert isinstance(highest, int)
        self._num_tags = highest + 1
        self.crowded = self.local_size > cores.together(self.near)
        self._polls_before_sleep = POLLS_BEFORE_SLEEP_CROWDED if self.crowded else POLLS_BEFORE_SLEEP
        epoch = np.array(time.perf_counter_ns())
        comm.Bcast([epoch, MPI.INT64_T])
        # as rank 0's clock has it
        self._first_epoch_ns = self.epoch_ns = int(epoch)
        self.align_clocks()
        self._discarded: list[MPI.Prequest] = []

    def send(self, array: np.ndarray, peer: int, tag: int) -> Request:
        return _Message(self._comm.Isend((array.view(np.uint8), MPI.BYTE), peer, tag % self._num_tags))

    def recv(self, array: np.ndarray, peer: int, tag: int) -> Request:
        return _Message(self._comm.Irecv((array.view(np.uint8), MPI.BYTE), peer, tag % self._num_tags))

    def sender(self, array: np.ndarray, peer: int, tag: int) -> Callable[[], Request]:
        message = self._repeated(self._comm.Send_init, array, peer, tag)
        return message.begin_eager if array.nbytes <= EAGER_BYTES else message.begin

    def receiver(self, array: np.ndarray, peer: int, tag: int) -> Callable[[], Request]:
        return self._repeated(self._comm.Recv_init, array, peer, tag).begin

    def _repeated(self, init: Callable[..., MPI.Prequest], array: np.ndarray, peer: int, tag: int) -> _Repeated:
        while self._discarded:
            self._discarded.pop().Free()
        return _Repeated(init((array.view(np.uint8), MPI.BYTE), peer, tag % self._num_tags), self._discarded)

    def barrier(self) -> None:
        self._meet(self._comm.Barrier, self._comm.Ibarrier)

    def bcast_bytes(self, data: bytes | None, root: int = 0) -> bytes:
        assert data is not None or self.rank != root, "the root of a broadcast has no data"
        length = np.array(len(data or b""))
        self._meet(self._comm.Bcast, self._comm.Ibcast, [length, MPI.INT64_T], root)
        buffer = np.empty(int(length), np.uint8)
        if self.rank == root:
            buffer[:] = np.frombuffer(data or b"", np.uint8)
        self._meet(self._comm.Bcast, self._comm.Ibcast, [buffer, MPI.BYTE], root)
        return buffer.tobytes()

    def gather_bytes(self, data: bytes, root: int = 0) -> list[bytes] | None:
        lengths, mine = np.zeros(self.size, np.int64), np.array(len(data))
        self._meet(self._comm.Gather, self._comm.Igather, [mine, MPI.INT64_T], [lengths, MPI.INT64_T], root)
        buffer = np.empty(int(lengths.sum()) if self.rank == root else 0, np.uint8)
        starts = np.cumsum(lengths) - lengths
        sent, received = [np.frombuffer(data, np.uint8), MPI.BYTE], [buffer, lengths, starts, MPI.BYTE]
        self._meet(self._comm.Gatherv, self._comm.Igatherv, sent, received, root)
        if self.rank != root:
            return None
        return [buffer[s : s + n].tobytes() for s, n in zip(starts.tolist(), lengths.tolist())]

    def _meet(self, blocking: Callable[..., None], begun: Callable[..., MPI.Request], *args: Any) -> None:
        """A collective of MPI's; polled where somebody attends to how long it takes, as all ranks then do."""
        attend = self.aside.attend
        if attend is None:
            blocking(*args)
            return
        request, empty_polls = begun(*args), 0
        while not request.Test():
            empty_polls += 1
            self.relax(empty_polls)
            attend()
        self.aside.met += 1

    def align_clocks(self) -> None:
        if len(self.host_sizes) == 1:
            # processes of one host share the clock
            return
        self.epoch_ns = self._first_epoch_ns + self.measured_offset_ns()
        # who pings last is late
        self.barrier()

    def measured_offset_ns(self) -> int:
        """This rank's perf_counter_ns minus rank 0's, by ping-pong of each host's first rank with rank 0, one after the
        other: the quickest answer is the truest."""
        offset = 0
        for peer in accumulate(self.host_sizes[:-1]):
            if self.rank == 0:
                self._answer_pings(peer)
            elif self.rank == peer:
                offset = self._ping()
        return int(self.near.bcast_bytes(str(offset).encode()))

    def _answer_pings(self, peer: int) -> None:
        clock = np.zeros(1, np.int64)
        for _ in range(PING_PONGS):
            self._comm.Recv([clock, MPI.INT64_T], peer)
            clock[0] = time.perf_counter_ns()
            self._comm.Send([clock, MPI.INT64_T], peer)

    def _ping(self) -> int:
        clock = np.zeros(1, np.int64)
        best = (sys.maxsize, 0)
        for _ in range(PING_PONGS):
            sent = time.perf_counter_ns()
            self._comm.Send([clock, MPI.INT64_T], 0)
            self._comm.Recv([clock, MPI.INT64_T], 0)
            back = time.perf_counter_ns()
            best = min(best, (back - sent, (sent + back) // 2 - int(clock[0])))
        return best[1]

    def relax(self, empty_polls: int) -> None:
        if empty_polls < self._polls_before_sleep:
            os.sched_yield()
        else:
            over = empty_polls - self._polls_before_sleep
            time.sleep(min(SHORTEST_SLEEP_SECONDS * (1 + over), LONGEST_SLEEP_SECONDS))

    def abort(self, status: int) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        if not MPI.Is_finalized():
            self._comm.Abort(status)
        os._exit(status)

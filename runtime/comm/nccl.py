"""NCCL: transfers between GPUs as calls that put them onto a stream; one NCCL communicator for each group.

Words and messages of the host go where they went before. It knows arrays by their addresses only, and not what the
transfers are for. It cannot tell a peer that is slow from one that hangs.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NoReturn

import cupy
import numpy as np

with warnings.catch_warnings():
    # CuPy's word where NCCL is missing; `choose` has its own
    warnings.simplefilter("ignore")
    from cupy.cuda import nccl

from castile.runtime.comm.base import WORDS_TAG, Communicator, Side
from castile.runtime.comm.messages import Request
from castile.runtime.comm.seats import SHARING_SWITCH, Seat, settings, verdict
from castile.runtime.watchdog import say

# Those who wait so long for others to meet are told why that may be.
MEETING_SECONDS = 30.0
# To end what is under way takes NCCL a moment, or until the others of this host end theirs: they may not know yet.
ENDING_SECONDS = 3.0
# The kinds of number that NCCL adds; bytes of any kind travel.
SUMMED = {
    "int8": "INT8", "uint8": "UINT8", "int32": "INT32", "uint32": "UINT32", "int64": "INT64", "uint64": "UINT64",
    "float16": "FLOAT16", "float32": "FLOAT32", "float64": "FLOAT64", "bfloat16": "BFLOAT16",
}  # fmt: skip
IDENTITY_BYTES = 128
Which = int | tuple[int, ...] | None


class TransferError(RuntimeError):
    """NCCL has failed: which rank, which transfer over which ranks, and what NCCL said.

    which  the transfer's tag, or the ranks of which any transfer may have failed; None where none was to be made
    late   whether it may be a transfer over the same ranks that was begun before
    """

    def __init__(self, words: str, which: Which = None, late: bool = False) -> None:
        super().__init__(words)
        self.which, self.late = which, late


def choose(comm: Communicator) -> tuple[Communicator, str]:
    """The communicator for transfers between GPUs, and why; every rank must call it after it chose its device.

    NCCL over `comm`, or `comm` itself, through which arrays then travel by way of the host.
    """
    # two hosts may have one name, and name their devices alike
    gpu = f"{comm.host_index}/{cupy.cuda.Device().pci_bus_id}"
    seat = [comm.host, gpu, version(), os.environ.get(SHARING_SWITCH) == "1"]
    seats = comm.gather_bytes(json.dumps(seat).encode())
    answer = json.dumps([*verdict([Seat(*json.loads(each)) for each in seats]), settings()]).encode() if seats else None
    is_nccl, why, ours = json.loads(comm.bcast_bytes(answer))
    return NcclCommunicator(comm, ours) if is_nccl else comm, why


def version() -> int:
    """NCCL's version as one number (23007 is 2.30.7), 0 where there is none."""
    return int(nccl.get_version()) if nccl.available else 0


class NcclCommunicator(Communicator):
    """A rank whose arrays lie on a GPU of its own (or its share of one); processor p is rank p of `comm`.

    Sums are made along a ring of which each piece begins elsewhere: alike on every member, alike in every run over the
    same machines, equal to rounding to sums in group order.
    """

    def __init__(self, comm: Communicator, agreed: Mapping[str, str | None] | None = None) -> None:
        """`agreed` are the `settings` of all ranks; this process's own by default."""
        for name, value in (agreed or settings()).items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        self._comm = comm
        self.rank, self.size, self.host, self.near = comm.rank, comm.size, comm.host, comm.near
        self.host_index, self.host_sizes = comm.host_index, comm.host_sizes
        self.local_rank, self.local_size, self.epoch_ns = comm.local_rank, comm.local_size, comm.epoch_ns
        self.crowded, self.aside = comm.crowded, comm.aside
        self._groups: dict[tuple[int, ...], Any] = {}
        self._failure: tuple[str, Which, bool] | None = None
        self._let_go: list[Callable[[], None]] = []
        # in the order in which they were made, which is one on all ranks
        weakref.finalize(self, _destroy, self._groups, self._let_go)

    def streamed(self, sides: Sequence[Side], tag: int, stream: Any) -> Callable[[], None] | None:
        """See `End.streamed`; what begins together is one group of NCCL's, which makes one kernel of it.

        Raises ValueError where numbers are to be added of a kind that NCCL does not add.
        """
        group = sides[0].group
        ranks, over = tuple(sorted(group)), f"over ranks {', '.join(map(str, group))} (transfer {tag})"
        kinds = [f"{side.form} of {_some(side).dtype}" for side in sides]
        for side, kind in zip(sides, kinds, strict=True):
            assert tuple(sorted(side.group)) == ranks, "transfers that begin together are between the same ranks"
            if side.form in _SUMS and str(_some(side).dtype) not in SUMMED:
                raise ValueError(f"NCCL does not add {_some(side).dtype}: {kind} {over}")
        comm, more = self._communicator(ranks), f" and {len(sides) - 1} more" * (len(sides) > 1)
        calls = [call for side in sides for call in _FORMS[side.form](self._part(side, ranks, comm, stream))]
        return partial(self._begin, comm, f"{kinds[0]}{more} {over}", tag, calls)

    def before_ending(self, let_go: Callable[[], None]) -> None:
        self._let_go.append(let_go)

    def check(self) -> None:
        self._refuse()
        for ranks, comm in self._groups.items():
            if fault := _fault_of(comm):
                self._fail(f"a transfer over ranks {', '.join(map(str, ranks))}", ranks, True, fault)

    def send(self, array: np.ndarray, peer: int, tag: int) -> Request:
        return self._comm.send(array, peer, tag)

    def recv(self, array: np.ndarray, peer: int, tag: int) -> Request:
        return self._comm.recv(array, peer, tag)

    def sender(self, array: np.ndarray, peer: int, tag: int) -> Callable[[], Request]:
        return self._comm.sender(array, peer, tag)

    def receiver(self, array: np.ndarray, peer: int, tag: int) -> Callable[[], Request]:
        return self._comm.receiver(array, peer, tag)

    def barrier(self) -> None:
        self._comm.barrier()

    def bcast_bytes(self, data: bytes | None, root: int = 0) -> bytes:
        return self._comm.bcast_bytes(data, root)

    def gather_bytes(self, data: bytes, root: int = 0) -> list[bytes] | None:
        return self._comm.gather_bytes(data, root)

    def relax(self, empty_polls: int) -> None:
        self._comm.relax(empty_polls)

    def align_clocks(self) -> None:
        self._comm.align_clocks()
        self.epoch_ns = self._comm.epoch_ns

    def abort(self, status: int) -> None:
        self._abort_groups()
        self._comm.abort(status)

    def _part(self, side: Side, ranks: tuple[int, ...], comm: Any, stream: Any) -> _Part:
        dtype = _some(side).dtype
        return _Part(
            comm, tuple(ranks.index(rank) for rank in side.group), side.group.index(self.rank),
            _address(side.send), _address(side.receive), side.counts, str(dtype), dtype.itemsize, stream.ptr,
        )  # fmt: skip

    def _communicator(self, ranks: tuple[int, ...]) -> Any:
        """The group's NCCL communicator; where it is not there yet its members meet, the first with its identity."""
        self._refuse()
        if ranks not in self._groups:
            identity = np.zeros(IDENTITY_BYTES, np.uint8)
            try:
                if self.rank == ranks[0]:
                    identity[:] = np.frombuffer(nccl.get_unique_id(), np.uint8)
                    self._comm.wait(*(self._comm.send(identity, peer, WORDS_TAG) for peer in ranks[1:]))
                else:
                    self._comm.wait(self._comm.recv(identity, ranks[0], WORDS_TAG))
                with _warned_when_late(ranks, self.rank == ranks[0]):
                    made = nccl.NcclCommunicator(len(ranks), identity.tobytes(), ranks.index(self.rank))
                self._groups[ranks] = made
            except _FAULTS as fault:
                self._fail(f"the meeting of ranks {', '.join(map(str, ranks))}", None, False, fault)
        return self._groups[ranks]

    def _begin(self, comm: Any, words: str, tag: int, calls: Sequence[Callable[[], None]]) -> None:
        self._refuse()
        try:
            if len(calls) == 1:
                calls[0]()
            elif calls:
                _together(calls)
        except _FAULTS as fault:
            # a call gives what a transfer before it has failed of, too
            late = _fault_of(comm) is not None
            self._fail(f"{words}, or one before it over these ranks," if late else words, tag, late, fault)

    def _refuse(self) -> None:
        """After one failure nothing is as it was: it is what is said from then on."""
        if self._failure:
            raise TransferError(*self._failure)

    def _fail(self, what: str, which: Which, late: bool, fault: Exception) -> NoReturn:
        """Ends all kernels that wait for a peer, so that the device can be left, and says what happened."""
        said = f"NCCL status {fault}" if isinstance(fault, KeyError) else str(fault)
        self._failure = f"rank {self.rank}: {what} failed: {said}", which, late
        self._abort_groups()
        raise TransferError(*self._failure) from fault

    def _abort_groups(self) -> None:
        """NCCL waits for what is under way: as kernels of one lie behind those of others, all are told to end first.

        It may also wait for others of this host, so what it does not end soon the end of this process does.
        """
        _call_all(self._let_go)
        aborts = [comm.abort for comm in self._groups.values()]
        # Nobody else is to end them meanwhile.
        self._groups.clear()
        ending = threading.Thread(target=_abort, args=(aborts,), daemon=True)
        ending.start()
        ending.join(ENDING_SECONDS)


@contextmanager
def _warned_when_late(ranks: Sequence[int], is_first: bool) -> Iterator[None]:
    """A block in which these ranks meet; the first of them says why it may take long, when it does."""
    others = ", ".join(map(str, ranks[1:]))
    late = (
        f"rank {ranks[0]} has waited {MEETING_SECONDS:g} s to meet by NCCL with ranks {others}: they are late, or do "
        "not reach it; NCCL_SOCKET_IFNAME names the network that joins the hosts, NCCL_DEBUG=INFO tells more"
    )
    timer = threading.Timer(MEETING_SECONDS, say, (late,))
    timer.daemon = True
    if is_first and others:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _abort(aborts: Sequence[Callable[[], None]]) -> None:
    with suppress(*_FAULTS):
        _together(aborts)


def _fault_of(comm: Any) -> Exception | None:
    """What NCCL tells of transfers of a communicator that were under way."""
    try:
        comm.check_async_error()
    except _FAULTS as fault:
        return fault
    return None


def _destroy(groups: dict[tuple[int, ...], Any], let_go: Sequence[Callable[[], None]]) -> None:
    _call_all(let_go)
    for comm in groups.values():
        comm.destroy()


def _call_all(let_go: Sequence[Callable[[], None]]) -> None:
    """NCCL does not come back from ending a communicator before all CUDA graphs are gone that have a call of it."""
    for call in let_go:
        call()


def _together(calls: Sequence[Callable[[], None]]) -> None:
    """One group of NCCL calls: none waits for another."""
    nccl.groupStart()
    try:
        for call in calls:
            call()
    except BaseException:
        # an open group would swallow what comes after it
        with suppress(*_FAULTS):
            nccl.groupEnd()
        raise
    nccl.groupEnd()


# The forms as NCCL calls: several are made together.


@dataclass(frozen=True)
class _Part:
    """One member's part: `peers` are the NCCL ranks in group order; addresses are 0 where the member has no array."""

    comm: Any
    peers: tuple[int, ...]
    me: int
    send: int
    receive: int
    counts: Sequence[Sequence[int]]
    dtype: str
    itemsize: int
    stream: int

    @property
    def in_order(self) -> bool:
        """Whether pieces in group order are pieces in NCCL's order."""
        return self.peers == tuple(range(len(self.peers)))

    def to(self, member: int, element: int, count: int) -> Callable[[], None]:
        nbytes, start = count * self.itemsize, self.send + element * self.itemsize
        return partial(self.comm.send, start, nbytes, nccl.NCCL_UINT8, self.peers[member], self.stream)

    def from_(self, member: int, element: int, count: int) -> Callable[[], None]:
        nbytes, start = count * self.itemsize, self.receive + element * self.itemsize
        return partial(self.comm.recv, start, nbytes, nccl.NCCL_UINT8, self.peers[member], self.stream)


Calls = list[Callable[[], None]]


def _address(array: Any) -> int:
    return 0 if array is None else int(array.data.ptr)


def _some(side: Side) -> Any:
    """An array of the side: one of the two there is."""
    return side.receive if side.send is None else side.send


def _starts(sizes: Sequence[int]) -> list[int]:
    return [end - size for size, end in zip(sizes, accumulate(sizes))]


def _kind(part: _Part) -> int:
    return int(getattr(nccl, f"NCCL_{SUMMED[part.dtype]}"))


def _all_reduce(part: _Part) -> Calls:
    count = sum(part.counts[0])
    call = partial(part.comm.allReduce, part.send, part.receive, count, _kind(part), nccl.NCCL_SUM, part.stream)
    return [call] if count else []


def _reduce_scatter(part: _Part) -> Calls:
    """Equal pieces at once; others as a reduction to each member of its own."""
    sizes, kind = part.counts[part.me], _kind(part)
    if part.in_order and len(set(sizes)) == 1:
        call = partial(part.comm.reduceScatter, part.send, part.receive, sizes[0], kind, nccl.NCCL_SUM, part.stream)
        return [call] if sizes[0] else []
    return [
        partial(part.comm.reduce, part.send + start * part.itemsize, part.receive if j == part.me else 0, size, kind,
                nccl.NCCL_SUM, part.peers[j], part.stream)
        for j, (size, start) in enumerate(zip(sizes, _starts(sizes))) if size
    ]  # fmt: skip


def _all_gather(part: _Part) -> Calls:
    """Equal pieces at once; others from each to each."""
    sizes = {count for row in part.counts for count in row}
    if part.in_order and len(sizes) == 1:
        nbytes = sizes.pop() * part.itemsize
        call = partial(part.comm.allGather, part.send, part.receive, nbytes, nccl.NCCL_UINT8, part.stream)
        return [call] if nbytes else []
    return _exchange(part, [0] * len(part.peers))


def _all_to_all(part: _Part) -> Calls:
    return _exchange(part, _starts(part.counts[part.me]))


def _exchange(part: _Part, starts: Sequence[int]) -> Calls:
    """To each member what begins at starts[member]; what comes lies in group order."""
    sent, received = part.counts[part.me], [row[part.me] for row in part.counts]
    calls = [part.to(j, start, count) for j, (start, count) in enumerate(zip(starts, sent)) if count]
    calls += [part.from_(j, start, n) for j, (start, n) in enumerate(zip(_starts(received), received)) if n]
    return calls


def _broadcast(part: _Part) -> Calls:
    nbytes = part.counts[0][0] * part.itemsize
    # a root that wants no copy sends in place, and the others' first address is not looked at
    send, receive = part.send or part.receive, part.receive or part.send
    call = partial(part.comm.broadcast, send, receive, nbytes, nccl.NCCL_UINT8, part.peers[0], part.stream)
    return [call] if nbytes else []


def _move(part: _Part) -> Calls:
    count = part.counts[0][1]
    return [part.from_(0, 0, count) if part.me else part.to(1, 0, count)] if count else []


_SUMS = ("all_reduce", "reduce_scatter")
_FORMS: dict[str, Callable[[_Part], Calls]] = {
    "move": _move,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
}
# CuPy 14 knows NCCL's first seven words for what went wrong by name; of the others it raises the bare number.
_FAULTS: tuple[type[Exception], ...] = (nccl.NcclError, KeyError) if nccl.available else (KeyError,)

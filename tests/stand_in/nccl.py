"""What `from cupy.cuda import nccl` gives in tests: NCCL with all ranks in one process, on the stand-in's streams.

It refuses what NCCL refuses, as NCCL 2.28.9 and 2.30.7 under CuPy 14.2 were seen to on an H200 (but for streams and
addresses of another device), and (`Refused`) what NCCL would not see: calls that do not match, and so hang or corrupt.
Work of a call is done when its stream and those of all members have come to it. Nothing here shows how fast NCCL is, in
which order it adds, or that its kernels find room beside others.
"""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from tests import stand_in
from tests.stand_in.collectives import COLLECTIVES, DTYPES, Op
from tests.stand_in.cupy import cuda

available = True
VERSION = 22809
NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)
NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64 = range(5)
NCCL_UINT64, NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = range(5, 10)
CUDA_ERROR, SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 1, 2, 4, 5, 6
NAMES = {1: "UNHANDLED_CUDA_ERROR", 2: "SYSTEM_ERROR", 3: "INTERNAL_ERROR", 4: "INVALID_ARGUMENT", 5: "INVALID_USAGE",
         6: "REMOTE_ERROR"}  # fmt: skip
IDENTITY_BYTES = 128


class NcclError(RuntimeError):
    """A status that is not success; as in CuPy 14, one that has no name there is a KeyError."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"NCCL_ERROR_{NAMES[status]}: {NAMES[status].lower().replace('_', ' ')}")


class Refused(AssertionError):
    """What NCCL would not have noticed."""


@dataclass
class Journal:
    """What was put onto streams, in order: (stream, communicator by number, rank in it, words); and what is to fail.

    meetings   (device, communicator by number) of those that were made, in order
    fails_at   the call, counted from one, that gives `status` instead of being made
    may_share  whether several ranks may sit on one device
    hanging_ends   communicators destroyed while a transfer was under way, or ended while a graph held a call of theirs
                   or while one of theirs lay behind what another one waits in, which would not have come back
    """

    calls: list[tuple[int, int, int, str]] = field(default_factory=list)
    meetings: list[tuple[int, int]] = field(default_factory=list)
    num_calls: int = 0
    fails_at: int = -1
    status: int = SYSTEM_ERROR
    may_share: bool = False
    hanging_ends: int = 0


class Meeting:
    """What the members of a communicator share."""

    def __init__(self, number: int) -> None:
        self.number, self.size = number, 0
        self.members: dict[int, NcclCommunicator] = {}
        self.rounds: dict[int, dict[int, Op]] = defaultdict(dict)
        self.finished: set[int] = set()
        self.posts: dict[tuple[str, int, int], deque[Post]] = defaultdict(deque)


@dataclass(eq=False)
class Post:
    """A send or a receive that waits for the other."""

    op: Op
    done: bool = False


journal = Journal()
_meetings: dict[bytes, Meeting] = {}
_numbers = itertools.count(1)
_group: list[tuple[NcclCommunicator, Op, int]] | None = None
# those that are to be ended with the group
_ended: list[NcclCommunicator] = []


@contextmanager
def installed(seed: int = 0, num_devices: int = 4) -> Iterator[Journal]:
    """`stand_in.installed` with NCCL, which has met nobody yet; the journal of what is called."""
    global journal, _group
    journal, _group = Journal(), None
    _meetings.clear()
    _ended.clear()
    with ExitStack() as patches:
        patches.enter_context(patch.object(cuda, "nccl", sys.modules[__name__], create=True))
        patches.enter_context(patch.object(cuda, "NUM_DEVICES", num_devices))
        bus = property(lambda device: f"0000:{device.id:02x}:00.0")
        patches.enter_context(patch.object(cuda.Device, "pci_bus_id", bus, create=True))
        patches.enter_context(stand_in.installed(seed))
        yield journal


def get_version() -> int:
    return VERSION


def get_unique_id() -> bytes:
    _called()
    number = next(_numbers)
    identity = number.to_bytes(IDENTITY_BYTES, "little")
    _meetings[identity] = Meeting(number)
    return identity


def groupStart() -> None:
    global _group
    _called()
    if _group is not None:
        raise Refused("a group in a group")
    _group = []


def groupEnd() -> None:
    global _group
    group, _group = _group, None
    _called()
    if group is None:
        raise NcclError(INVALID_USAGE)
    for comm in {id(comm): comm for comm, _, _ in group}.values():
        ops = [op for other, op, _ in group if other is comm]
        streams = {stream for other, _, stream in group if other is comm}
        if len(streams) > 1:
            raise Refused("one communicator on several streams in one group")
        comm._check_self(ops)
        comm._launch(ops, streams.pop())
    while _ended:
        _ended.pop()._end()


def _called() -> None:
    journal.num_calls += 1
    if journal.num_calls == journal.fails_at:
        raise NcclError(journal.status)


class NcclCommunicator:
    """One rank's end; unlike NCCL's it does not wait for the others, who come later in the same process."""

    def __init__(self, ndev: int, commId: bytes, rank: int, config: object = None) -> None:
        _called()
        if not isinstance(commId, bytes) or len(commId) != IDENTITY_BYTES:
            raise TypeError("an identity has 128 bytes")
        if not 0 <= rank < ndev:
            raise NcclError(INVALID_ARGUMENT)
        if commId not in _meetings:
            raise NcclError(SYSTEM_ERROR)
        meeting = _meetings[commId]
        meeting.size = meeting.size or ndev
        self.device = cuda.Device().id
        taken = {comm.device for comm in meeting.members.values()}
        if meeting.size != ndev or rank in meeting.members or (self.device in taken and not journal.may_share):
            raise NcclError(INVALID_USAGE)
        meeting.members[rank] = self
        journal.meetings.append((self.device, meeting.number))
        self._meeting: Meeting | None = meeting
        self._rank, self._aborted, self._error = rank, False, 0
        self._running: Launch | None = None
        self._num_collectives = 0
        # whoever ends with an earlier test, be it later, does not hang in this one
        self._journal = journal

    def check_async_error(self) -> None:
        _called()
        self._there()
        if self._error:
            raise NcclError(self._error)

    def abort(self) -> None:
        """Ends what is under way here; whoever waits for us waits on. In a group all are told first."""
        self._aborted = True
        if _group is None:
            self._end()
        else:
            _ended.append(self)

    def _end(self) -> None:
        """Waits for what is under way to be over."""
        # A graph that is being captured holds them no less.
        holders = [*cuda.world.graphs, *{one.capture for one in cuda.world.streams if one.capture is not None}]
        nodes = (work for holder in holders for work, _, _ in holder.nodes)
        held = any(isinstance(work, Launch) and work._comm is self for work in nodes)
        if self._meeting is not None and (held or self._is_behind_others()):
            self._journal.hanging_ends += 1
        self._meeting = None

    def _is_behind_others(self) -> bool:
        """Whether work of ours, on a stream or in a graph, cannot end before that of others, which nobody has told."""
        for stream in cuda.world.streams:
            waits = False
            for work, _ in stream.queue:
                launches = [one for one in getattr(work, "parts", [work]) if isinstance(one, Launch)]
                waits = waits or any(not one._comm._aborted for one in launches if one._comm is not self)
                if waits and any(one._comm is self for one in launches):
                    return True
        return False

    def destroy(self) -> None:
        if self._running is not None and not self._aborted:
            self._journal.hanging_ends += 1
        self.abort()

    def allReduce(self, send: int, receive: int, count: int, dtype: int, op: int, stream: int) -> None:
        self._collective(Op("allReduce", send, receive, count, dtype), count, count, stream, op, (0, 0))

    def reduce(self, send: int, receive: int, count: int, dtype: int, op: int, root: int, stream: int) -> None:
        there = count if root == self._rank else 0
        self._collective(Op("reduce", send, receive, count, dtype, root), count, there, stream, op, (0, 0))

    def reduceScatter(self, send: int, receive: int, count: int, dtype: int, op: int, stream: int) -> None:
        size = self._there().size
        self._collective(Op("reduceScatter", send, receive, count, dtype), count * size, count, stream, op,
                         (0, self._rank * count))  # fmt: skip

    def allGather(self, send: int, receive: int, count: int, dtype: int, stream: int) -> None:
        size = self._there().size
        self._collective(Op("allGather", send, receive, count, dtype), count, count * size, stream, NCCL_SUM,
                         (self._rank * count, 0))  # fmt: skip

    def broadcast(self, send: int, receive: int, count: int, dtype: int, root: int, stream: int) -> None:
        there = count if root == self._rank else 0
        self._collective(Op("broadcast", send, receive, count, dtype, root), there, count, stream, NCCL_SUM, (0, 0))

    def send(self, buffer: int, count: int, dtype: int, peer: int, stream: int) -> None:
        self._enter(Op("send", buffer, 0, count, dtype, peer), count, 0, stream)

    def recv(self, buffer: int, count: int, dtype: int, peer: int, stream: int) -> None:
        self._enter(Op("recv", 0, buffer, count, dtype, peer), 0, count, stream)

    def _there(self) -> Meeting:
        if self._meeting is None:
            raise NcclError(INVALID_ARGUMENT)
        return self._meeting

    def _collective(
        self, op: Op, sent: int, received: int, stream: int, operator: int, in_place: tuple[int, int]
    ) -> None:
        if operator not in range(5):
            raise NcclError(INVALID_ARGUMENT)
        if sent and received and 0 <= op.dtype < len(DTYPES):
            size = DTYPES[op.dtype].itemsize
            apart = op.send + sent * size <= op.receive or op.receive + received * size <= op.send
            together = op.send - in_place[0] * size == op.receive - in_place[1] * size
            if not apart and not together:
                raise Refused(f"{op.name}: what is sent and what is received overlap")
        self._enter(op, sent, received, stream)

    def _enter(self, op: Op, sent: int, received: int, stream: int) -> None:
        """Checks a call and launches it, or leaves it to the group that is open."""
        _called()
        size = self._there().size
        if self._error:
            raise NcclError(self._error)
        if op.count < 0:
            raise OverflowError("can't convert negative value to size_t")
        if not 0 <= op.dtype < len(DTYPES) or not -1 <= op.other < size:
            raise NcclError(INVALID_ARGUMENT)
        if cuda.stream_of(stream).device_id != self.device or (sent and not op.send) or (received and not op.receive):
            raise NcclError(CUDA_ERROR)
        itemsize = DTYPES[op.dtype].itemsize
        for address, count in ((op.send, sent), (op.receive, received)):
            if count:
                cuda.memory(address, count * itemsize)
        if _group is not None:
            _group.append((self, op, stream))
            return
        self._check_self([op])
        self._launch([op], stream)

    def _check_self(self, ops: Sequence[Op]) -> None:
        """Nothing may wait for what comes after it from oneself."""
        own = [op.name for op in ops if op.other == self._rank and op.name in ("send", "recv")]
        if own.count("send") != own.count("recv"):
            raise NcclError(INVALID_USAGE)

    def _launch(self, ops: Sequence[Op], stream: int) -> None:
        meeting = self._there()
        for op in ops:
            op.captured = cuda.stream_of(stream).capture is not None
        words = " + ".join(f"{op.name} {op.count} {DTYPES[op.dtype]} {op.other}" for op in ops)
        journal.calls.append((stream, meeting.number, self._rank, words))
        cuda.stream_of(stream).enqueue(Launch(self, tuple(ops)), words)


class Launch:
    """One kernel: called again and again until it has ended, and from the beginning where a graph is replayed."""

    def __init__(self, comm: NcclCommunicator, ops: tuple[Op, ...]) -> None:
        self._comm, self._ops = comm, ops
        self._waits: list[Callable[[], bool]] = []

    def __call__(self) -> bool:
        comm = self._comm
        if comm._aborted:
            comm._running = None
            return True
        if comm._running is None:
            comm._running = self
            self._waits = [_arrive(comm, op) for op in self._ops]
        if comm._running is not self:
            return False
        self._waits = [done for done in self._waits if not done()]
        if self._waits:
            return False
        comm._running = None
        return True


def _arrive(comm: NcclCommunicator, op: Op) -> Callable[[], bool]:
    """A member's stream has come to the call: whether all have, and it is done."""
    meeting, rank = comm._there(), comm._rank
    if op.name in ("send", "recv"):
        return _post(meeting, rank, op)
    number = comm._num_collectives
    comm._num_collectives += 1
    arrived = meeting.rounds[number]
    for other, there in arrived.items():
        if there.signature != op.signature:
            raise Refused(f"rank {rank} calls {op.signature} where rank {other} calls {there.signature}")
    arrived[rank] = op
    if len(arrived) == meeting.size:
        COLLECTIVES[op.name]([arrived[r] for r in range(meeting.size)])
        meeting.finished.add(number)
        del meeting.rounds[number]
    return lambda: number in meeting.finished


def _post(meeting: Meeting, rank: int, op: Op) -> Callable[[], bool]:
    """Sends wait for receives: nothing is kept on the way."""
    source, target = (rank, op.other) if op.name == "send" else (op.other, rank)
    mine, post = meeting.posts[op.name, source, target], Post(op)
    theirs = meeting.posts["recv" if op.name == "send" else "send", source, target]
    if not theirs:
        mine.append(post)
        return lambda: post.done
    other = theirs.popleft()
    if other.op.nbytes != op.nbytes:
        raise Refused(f"{source} sends to {target} {op.nbytes} bytes one way, {other.op.nbytes} the other")
    if other.op.captured != op.captured:
        raise Refused(f"what {source} sends to {target} is captured by one of them")
    sent, received = (op, other.op) if op.name == "send" else (other.op, op)
    cuda.memory(received.receive, op.nbytes)[:] = cuda.memory(sent.send, op.nbytes)
    other.done = True
    return lambda: True

"""Tasks and the task graph: what is done, where, touching what, and after what.

It does not know operators, clocks, or how a kernel computes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from castile.runtime.region import Box


class Use(Enum):
    """How a task touches a box (Legion's privileges): REDUCE adds a partial sum to it."""

    READ = "read"
    WRITE = "write"
    REDUCE = "reduce"


class Kind(IntEnum):
    """What a task is: kernels on one processor, or bytes between several."""

    COMPUTE = 0
    PACK = 1
    FOLD = 2
    MOVE = 3
    COLLECTIVE = 4


class Lane(IntEnum):
    """The queues of a processor; a machine may serve several of them by one engine."""

    COMPUTE = 0
    SEND = 1
    RECEIVE = 2
    COLLECTIVE = 3
    HOST = 4


NUM_LANES = len(Lane)


class Arg(msgspec.Struct, frozen=True):
    """An array operand of a call: the task's view, or a temporary of its body, by number.

    turn   where in the view each dim of the operand is; () where as they come
    """

    space: str  # "view" | "temp"
    index: int
    turn: tuple[int, ...] = ()

    def among(self, arrays: Mapping[str, Sequence[Any]]) -> Any:
        """The array that this operand is, turned as it says.

        arrays   by space ("view", "temp") what its numbers stand for: anything with a `transpose`
        """
        array = arrays[self.space][self.index]
        return array.transpose(self.turn) if self.turn else array


class Temp(NamedTuple):
    """A temporary array at a byte offset of the task's private memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


class Call(msgspec.Struct, frozen=True):
    """One kernel call: `args` are Args or literals, `outs` Args; scratch lies in the task's private memory."""

    kernel: str
    args: tuple[object, ...]
    outs: tuple[Arg, ...]
    params: tuple[tuple[str, object], ...] = ()
    accumulate: bool = False
    scratch_offset: int = 0
    scratch_bytes: int = 0


class Body(msgspec.Struct, frozen=True):
    """What a task computes: its kernel calls in order, and the private bytes that they need."""

    calls: tuple[Call, ...]
    temps: tuple[Temp, ...] = ()
    private_bytes: int = 0


class View(NamedTuple):
    """A sub-box of a buffer, in the coordinates of the buffer's box; with `shape`, that unbroken run in that shape."""

    buffer: int
    box: Box
    shape: tuple[int, ...] | None = None


class Buffer(NamedTuple):
    """An instance: a dense array over `box` of a region, on one processor.

    Persistent ones live through the whole step and the next ones: `role` is "carried" (parameters, state),
    "input" (filled by the host before the step), "output" (read by the host after it) or "" (transient).
    """

    region: str
    box: Box
    dtype: str
    proc: int
    role: str = ""


# Forms whose members send all that they send when they begin: only such ones may begin together, one after the other.
AT_ONCE = ("reduce_scatter", "all_gather", "all_to_all")


class Comm(msgspec.Struct, frozen=True):
    """A transfer between processors, over flat contiguous views in the order of `group`.

    form     "move" | "all_reduce" | "reduce_scatter" | "all_gather" | "all_to_all" | "broadcast"
    send     what each member sends (None: nothing), pieces in group order
    receive  where each member's result lies (None: nowhere)
    scratch  staging of each member (None: none is needed)
    counts   counts[i][j]: elements that member i sends to member j (all_reduce: elements of piece j, for every i)
    A move has the group (source, destination). A broadcast's root is group[0]. Sums are added in group order.
    """

    form: str
    group: tuple[int, ...]
    send: tuple[View | None, ...]
    receive: tuple[View | None, ...]
    scratch: tuple[View | None, ...]
    counts: tuple[tuple[int, ...], ...]


NOTHING = Body(())
STRIDED = " strided"
BEGUN_TOGETHER = " at once"
# What vectors of 16 bytes hold of numbers of 16 bits, and arrays of several rows as cost keys tell them: how long their
# dims are, and which of them lie outside which; channels are the second dim of images.
ALIGNED, ROWS, CHANNELS = 8, re.compile(r"(\d+(?:x\d+)+)(?:@(\d+))?"), 1
# Behind the settings of a kernel what is counted of it beside operations and bytes.
ROWS_OF_IMAGES = ",rows="
LOOKS = ",looks="
# Of the fields of a task graph.
NUMBERS = ("cost", "lane_ptr", "lanes", "need_ptr", "needs", "use_ptr", "uses", "buffer_proc", "buffer_first")


class CostKey(msgspec.Struct, frozen=True, cache_hash=True):
    """What a task costs, by name: durations are looked up, learned and stored under it.

    nbytes    bytes that kernels touch, or for a transfer the bytes of its largest member
    link      the class of the slowest link that a transfer crosses; "" for work on one processor
    members   processors that take part
    """

    name: str
    shapes: str
    dtype: str
    flops: Annotated[int, msgspec.Meta(ge=0)]
    nbytes: Annotated[int, msgspec.Meta(ge=0)]
    link: str = ""
    members: Annotated[int, msgspec.Meta(ge=1)] = 1

    def strided(self, arrays: Mapping[int, tuple[int, ...]]) -> CostKey:
        """The key of the same work where some operands are read in strides.

        arrays   by the operand's place in `shapes` the shape of the larger array that it is read out of
        """
        shapes, bar, settings = self.shapes.partition("|")
        rows = shapes.split(";")
        for n, shape in arrays.items():
            rows[n] += "/" + "x".join(map(str, shape))
        return msgspec.structs.replace(self, name=self.name + STRIDED, shapes=";".join(rows) + bar + settings)

    @property
    def work(self) -> str:
        """What is done, by name, however arrays lie."""
        return self.name.removesuffix(STRIDED)

    @property
    def dense(self) -> CostKey | None:
        """The key of the same work on unbroken arrays; None where this one already reads no others."""
        if self.work == self.name:
            return None
        dense = re.sub(r"/[0-9x]*", "", self.shapes)
        return msgspec.structs.replace(self, name=self.work, shapes=dense)

    @property
    def traits(self) -> frozenset[str]:
        """How what a kernel touches lies in memory: "unaligned" where rows of any array are no multiples of ALIGNED
        long, and so begin elsewhere too, and "planar" where no array has the channels of images innermost.
        """
        arrays = ROWS.findall(self.shapes.partition("|")[0])
        is_unaligned = any(int(dims.split("x")[int(order[-1:] or -1)]) % ALIGNED for dims, order in arrays)
        is_planar = not any(order.endswith(str(CHANNELS)) for _, order in arrays)
        return frozenset(["unaligned"] * is_unaligned + ["planar"] * is_planar)

    @property
    def rows(self) -> int:
        """How many rows of images a kernel brings to where windows slide over them (`Op.rows`)."""
        return self._count(ROWS_OF_IMAGES)

    @property
    def looks(self) -> int:
        """How many numbers a kernel finds by looking at short rows again and again (`Op.looks`)."""
        return self._count(LOOKS)

    def _count(self, of: str) -> int:
        return int(self.shapes.rpartition(of)[2].partition(",")[0]) if of in self.shapes else 0

    def begun_with(self, others: Sequence[CostKey]) -> CostKey:
        """The key of this transfer and others that begin together with it: how many they are, and all their bytes."""
        nbytes = sum(key.nbytes for key in (self, *others))
        return msgspec.structs.replace(self, shapes=f"{1 + len(others)}{BEGUN_TOGETHER}", nbytes=nbytes)

    @property
    def num_begun(self) -> int:
        """How many transfers begin together."""
        count = self.shapes.removesuffix(BEGUN_TOGETHER)
        return int(count) if self.link and count != self.shapes else 1


@dataclass(frozen=True)
class Task:
    """One task, written out: made only where a task is executed or shown.

    comms   what a transfer consists of, begun together: several are of AT_ONCE, between the same processors
    """

    index: int
    name: str
    kind: Kind
    procs: tuple[int, ...]
    views: tuple[View, ...] = ()
    body: Body = NOTHING
    comms: tuple[Comm, ...] = ()


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """One period of a loop in flat arrays; T tasks, K cost keys, B buffers. Numbers of things, and where rows of them
    begin, are int32: below 2**31 of each; `order` and bytes are int64.

    kind[T], order[T]             order: the key by which lanes break ties, unique, independent of creation
    cost[T] -> cost_keys          what each task costs
    lane_ptr[T+1], lanes          task t occupies lanes[lane_ptr[t]:lane_ptr[t+1]]; lane = proc * NUM_LANES + Lane
    need_ptr[T+1], needs          task t starts after needs[need_ptr[t]:need_ptr[t+1]] (sorted, unique)
    use_ptr[T+1], uses            buffers that task t touches (sorted, unique)
    buffer_proc[B], buffer_bytes[B], buffer_first[B]   the task that begins the buffer's life, -1 for persistent ones
    private_bytes[T]              temporaries and scratch that live as long as the task runs
    num_procs                     processors of the machine
    tasks, buffers                written out on demand: tasks[t] -> Task, buffers[b] -> Buffer
    """

    kind: np.ndarray
    order: np.ndarray
    cost: np.ndarray
    cost_keys: tuple[CostKey, ...]
    lane_ptr: np.ndarray
    lanes: np.ndarray
    need_ptr: np.ndarray
    needs: np.ndarray
    use_ptr: np.ndarray
    uses: np.ndarray
    buffer_proc: np.ndarray
    buffer_bytes: np.ndarray
    buffer_first: np.ndarray
    private_bytes: np.ndarray
    num_procs: int
    tasks: Sequence[Task]
    buffers: Sequence[Buffer]

    def __post_init__(self) -> None:
        for name in NUMBERS:
            values = getattr(self, name)
            if values.dtype != np.int32:
                # Rows ascend: where the last ends is the most.
                assert not name.endswith("_ptr") or values[-1] < 2**31, f"{name}: too many for int32"
                object.__setattr__(self, name, values.astype(np.int32))

    @property
    def num_tasks(self) -> int:
        """How many tasks there are."""
        return len(self.kind)

    @property
    def num_buffers(self) -> int:
        """How many buffers there are."""
        return len(self.buffer_proc)

    @cached_property
    def digest(self) -> str:
        """A hash of all that the ranks must agree on."""
        h = hashlib.sha256()
        for array in (self.kind, self.order, self.cost, self.lane_ptr, self.lanes, self.need_ptr, self.needs,
                      self.use_ptr, self.uses, self.buffer_proc, self.buffer_bytes, self.private_bytes):  # fmt: skip
            h.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
        h.update(repr(self.cost_keys).encode())
        return h.hexdigest()[:16]

    def lanes_of(self, task: int) -> np.ndarray:
        """The lanes that a task occupies: processor * NUM_LANES + lane."""
        return self.lanes[self.lane_ptr[task] : self.lane_ptr[task + 1]]

    def needs_of(self, task: int) -> np.ndarray:
        """The numbers of the tasks that it waits for."""
        return self.needs[self.need_ptr[task] : self.need_ptr[task + 1]]

    def uses_of(self, task: int) -> np.ndarray:
        """The numbers of the buffers that it touches."""
        return self.uses[self.use_ptr[task] : self.use_ptr[task + 1]]

    def tasks_of(self, proc: int) -> np.ndarray:
        """The numbers of the tasks that occupy a lane of that processor, ascending."""
        owner = np.repeat(np.arange(self.num_tasks), np.diff(self.lane_ptr))
        return np.unique(owner[self.lanes // NUM_LANES == proc])

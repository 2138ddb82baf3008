"""The backend for NVIDIA GPUs: CuPy arrays in one allocation, kernels in Triton, a step put onto streams as a whole.

Where everything lies is the numpy backend's business; here the memory is a device's. It does not know when a step is
run, nor what its kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import cupy
import numpy as np

from castile.kernels.calls import chain
from castile.runtime.backends import base, numpy
from castile.runtime.backends.cuda import parts
from castile.runtime.backends.cuda.issuer import Issuer
from castile.runtime.backends.cuda.kernels import DeviceTable, Listed, compile_ahead
from castile.runtime.backends.cuda.lead import Lead
from castile.runtime.backends.cuda.polled import Polled
from castile.runtime.backends.cuda.streams import Phase, Seat
from castile.runtime.backends.cuda.supply import Results, Supply
from castile.runtime.backends.cuda.within import Member, phases
from castile.runtime.comm.base import WORDS_TAG, End
from castile.runtime.comm.messages import Request
from castile.runtime.comm.staged import StagedEnd
from castile.runtime.executor import Program
from castile.runtime.memory import Packing, written
from castile.runtime.task import NUM_LANES, Comm, Kind, Task, TaskGraph
from castile.runtime.worker import Action, Worker

# Elements that no device takes long to copy; the lead of each device.
_FEW = 1024
_LEADS: dict[int, Lead] = {}


class Backend(numpy.Backend):
    """A processor whose memory is that of the current device.

    compute_stream  that of its kernels. traffic: that of its transfers
    """

    feeds_ahead = True

    def __init__(
        self, graph: TaskGraph, packing: Packing, proc: int, state: base.State, poison: bool,
        lent: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        place = parts.place(proc)
        self.compute_stream, self.traffic = place.compute, place.traffic
        with self.compute_stream:
            super().__init__(graph, packing, proc, state, poison, lent)
        self._table = self._kernels = DeviceTable(self.compute_stream)
        self._inputs = {id(array) for array in self.persistent.get("input", {}).values()}
        self._sums = DeviceTable(self.traffic)
        self._supply, self._results = Supply(), Results(self.persistent.get("output", {}).values())
        self._kernels_bytes = 0

    @property
    def workspace_bytes(self) -> int:  # type: ignore[override]
        """Working memory of kernels, and where inputs wait for their step."""
        return self._kernels_bytes + self._supply.nbytes

    def compute(self, task: Task) -> Callable[[], object]:
        with self.compute_stream:
            return super().compute(task)

    def worker(self, steps: Program, tasks: Sequence[Task], tags: Sequence[int], end: End) -> Worker:
        rows = list(zip(tasks, tags, steps.asynchronous, strict=True))
        streamed = {task.index: self._streamed(task, end, tag) for task, tag, moves in rows if moves}
        seat = self._seat(steps, tasks)
        if None in streamed.values():
            staged = StagedEnd(end, self.compute_stream, self.traffic)
            moving = {task.index: self.transfer(task, staged, tag) for task, tag, moves in rows if moves}
            actions = {**seat.kernels, **moving}
            ordered = [actions[task] for task in steps.tasks]
            deliver = partial(self._supply.deliver, self.compute_stream)
            return Polled(steps, ordered, self.compute_stream, staged, deliver)
        transfers = {task: [[(self.traffic, call)]] for task, call in streamed.items() if call is not None}
        check = end.check if transfers else None
        named: dict[Any, int] = {}
        for task, tag, moves in rows:
            if moves:
                named |= {tag: task.index, tuple(sorted(task.comms[0].group)): task.index}
        group = _meeting(self._graph)
        tell = partial(_tell, end, group) if self.proc in group else None
        ends = [(self._supply, self._results)]
        issuer = Issuer([seat], transfers, ends, check, _lead, self._kernels.on_host, named, tell)
        if transfers:
            end.before_ending(issuer.captured.clear)
        return issuer

    @classmethod
    def workers(cls, shares: Sequence[base.Share]) -> list[Worker]:
        """One for each processor, or one for all where nothing leaves the process: then they meet on their streams."""
        memories = {share.memory.proc: cast(Backend, share.memory) for share in shares}
        compile_ahead({name for share in shares for name in memories[share.memory.proc]._names(share)})
        moving = {task.index: task for share in shares for task in share.tasks if task.comms}
        if len(shares) < 2 or any(not memories.keys() >= set(task.procs) for task in moving.values()):
            return super().workers(shares)
        seats = [memories[share.memory.proc]._seat(share.steps, share.tasks) for share in shares]
        transfers = {number: _shared(task, memories) for number, task in moving.items()}
        found = list(memories.values())
        on_host = set().union(*(table.on_host for memory in found for table in (memory._kernels, memory._sums)))
        ends = [(memory._supply, memory._results) for memory in found]
        return [Issuer(seats, transfers, ends, None, _lead, on_host)]

    def fill(self, array: Any, values: np.ndarray | float) -> None:
        """As for others; inputs may be filled while a step is under way, and the next one begins with them."""
        if id(array) in self._inputs:
            self._supply.put(array, values)
        else:
            there = np.empty(array.shape, array.dtype)
            there[...] = values
            array.set(there, stream=self.compute_stream)
            self.compute_stream.synchronize()

    def read(self, array: Any) -> np.ndarray:
        """A copy; that of a small output is of the last step that has ended, though the next one be under way."""
        there = self._results.read(array)
        return array.get(stream=self.compute_stream) if there is None else there

    def _streamed(self, task: Task, end: End, tag: int) -> Action | None:
        """This processor's part of a transfer as a call that puts it onto the stream of transfers, if that can be."""
        begin = end.streamed([self._side(comm) for comm in task.comms], tag, self.traffic)
        return begin and self._after_poisoning(task, begin)

    def _names(self, share: base.Share) -> set[str]:
        """Of all calls that this processor's kernels make."""
        listed = Listed(self._kernels)
        self._table = listed
        for task, moves in zip(share.tasks, share.steps.asynchronous):
            if not moves:
                super().compute(task)
        self._table = self._kernels
        return listed.called

    def _seat(self, steps: Program, tasks: Sequence[Task]) -> Seat:
        """This processor's kernels, bound."""
        pool = cupy.get_default_memory_pool()
        before = pool.total_bytes()
        kernels = {task.index: self.compute(task) for task, moves in zip(tasks, steps.asynchronous) if not moves}
        self._kernels_bytes = pool.total_bytes() - before
        return Seat(steps, kernels, self.compute_stream)

    def _part(self, comm: Comm) -> Member:
        """This processor's part in a transfer that does not leave the process."""
        send, receive, _ = self._member(comm)
        return Member(send, receive, self.traffic, self._added)

    def _added(self, a: Any, b: Any, out: Any) -> Action:
        """The call that puts out = a + b onto the stream of transfers."""
        with self.traffic:
            return self._sums.bind("add", (a, b), (out,), {})

    def _after_poisoning(self, task: Task, begin: Action) -> Action:
        memories = self._begun_by(task, self._private(task))
        return chain([*(_set(memory, numpy.POISON, self.traffic) for memory in memories), begin])

    def _poisoning(self, memory: Any) -> Callable[[], object]:
        return _set(memory, numpy.POISON, self.compute_stream)

    def _allocate(self, nbytes: int) -> Any:
        """Bytes of the device, none of them in a pool: zeros, or poison. Raises MemoryError where it has too few.

        Another rank's device may have enough: no ValueError, as of a plan that fits nowhere.
        """
        free = cupy.cuda.runtime.memGetInfo()[0]
        if nbytes > free:
            raise MemoryError(f"the GPU has {written(free)} left of its memory, and {written(nbytes)} more are needed")
        memory = cupy.ndarray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(cupy.cuda.Memory(nbytes), 0))
        _set(memory, numpy.POISON if self._poison else 0, self.compute_stream)()
        # Streams of other processors write into it, too.
        self.compute_stream.synchronize()
        return memory


def _set(memory: Any, value: int, stream: Any) -> Callable[[], object]:
    """The call that sets all bytes to a value."""
    return partial(memory.data.memset_async, value, memory.nbytes, stream)


def _lead() -> Lead:
    """That of the current device; making it takes some milliseconds."""
    device = cupy.cuda.runtime.getDevice()
    if device not in _LEADS:
        _LEADS[device] = Lead.of(_short)
    return _LEADS[device]


def _short(stream: Any) -> Action:
    """The call of a kernel that takes next to no time."""
    few, others = (cupy.empty(_FEW, np.float32) for _ in range(2))
    return DeviceTable(stream).bind("copy", (few,), (others,), {})


def _shared(task: Task, memories: Mapping[int, Backend]) -> list[Phase]:
    """A transfer between processors of this process; first of all what it begins is poisoned, by whoever owns it."""
    members = [memories[proc] for proc in task.procs]
    poisoning = [
        (memory.traffic, _set(begun, numpy.POISON, memory.traffic))
        for memory in members
        for begun in memory._begun_by(task, memory._private(task))
    ]
    found: list[Phase] = [poisoning]
    for comm in task.comms:
        found += phases(comm.form, [memories[proc]._part(comm) for proc in comm.group], comm.counts)
    return found if any(found) else [[(members[-1].traffic, _nothing)]]


def _nothing() -> None:
    """What a transfer of no elements does."""


def _meeting(graph: TaskGraph) -> tuple[int, ...]:
    """The processors that have transfers with others."""
    procs, begins = graph.lanes // NUM_LANES, graph.lane_ptr[:-1]
    apart = np.minimum.reduceat(procs, begins) < np.maximum.reduceat(procs, begins)
    found = procs[np.repeat(apart & (graph.kind >= Kind.MOVE), np.diff(graph.lane_ptr))]
    return tuple(np.unique(found).tolist())


def _tell(end: End, group: Sequence[int], number: int) -> tuple[Request, np.ndarray]:
    """Tells the group a number; the request that is done when all have told theirs, and where these then stand."""
    found, counts = np.empty(len(group), np.int8), [[1] * len(group)] * len(group)
    return end.collective("all_gather", group, np.array([number], np.int8), found, None, counts, WORDS_TAG), found

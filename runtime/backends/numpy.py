"""The backend for CPUs: one arena a processor, and kernels bound to views of it before the first step.

It does not know when a task runs; a bound task only calls kernels, so that a warm step makes no arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import prod

import numpy as np

from castile.kernels.calls import chain
from castile.kernels.table import Table
from castile.runtime.backends import base
from castile.runtime.comm.base import End, Side
from castile.runtime.comm.messages import Request
from castile.runtime.memory import Packing
from castile.runtime.region import relative, slices
from castile.runtime.task import Arg, Call, Comm, Task, TaskGraph, View

ALIGNMENT = 64
POISON = 0xFF  # all bits one: a NaN in every float


class Backend(base.Backend):
    """A processor whose memory is a numpy array."""

    def __init__(
        self, graph: TaskGraph, packing: Packing, proc: int, state: base.State, poison: bool,
        lent: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self._graph, self._packing, self.proc, self._poison = graph, packing, proc, poison
        self._table = _table()
        mine = np.flatnonzero(graph.buffer_proc == proc)
        lasting = mine[graph.buffer_first[mine] < 0]
        # Persistent arrays lie outside the arena, so that several graphs can share them; the packer puts them lowest.
        self._floor = int((packing.offset[lasting] + _aligned(graph.buffer_bytes[lasting])).max(initial=0))
        self._lent, self.nbytes = lent, 0
        self.arena = self._lent_or_new(int(packing.peak_bytes[proc]) - self._floor)
        self._arrays: dict[int, np.ndarray] = {}
        self.persistent = {}
        for index in lasting.tolist():
            self._add_persistent(index, state)
        transient = mine[graph.buffer_first[mine] >= 0]
        assert (packing.offset[transient] >= self._floor).all(), "persistent buffers must lie below all others"
        self._born: dict[int, list[int]] = {}
        for index in transient.tolist():
            self._born.setdefault(int(graph.buffer_first[index]), []).append(index)

    def compute(self, task: Task) -> Callable[[], object]:
        private = self._private(task)
        temps = [_array(private, temp.offset, temp.dtype, temp.shape) for temp in task.body.temps]
        operands = {"view": [self._view(view) for view in task.views], "temp": temps}
        calls = [self._bind(call, operands, private) for call in task.body.calls]
        return chain([*map(self._poisoning, self._begun_by(task, private)), *calls])

    def transfer(self, task: Task, end: End, tag: int) -> Callable[[], Request]:
        begin = end.prepared([self._side(comm) for comm in task.comms], tag)
        poisoning = [*map(self._poisoning, self._begun_by(task, self._private(task)))]
        return _after(chain(poisoning), begin) if poisoning else begin

    def _add_persistent(self, index: int, state: base.State) -> None:
        """Takes the buffer's array from `state`, or makes it and puts it there."""
        buffer = self._graph.buffers[index]
        key = (buffer.region, buffer.box, buffer.proc)
        if key not in state:
            memory = self._lent_or_new(int(_aligned(buffer.box.volume * np.dtype(buffer.dtype).itemsize)))
            state[key] = _array(memory, 0, buffer.dtype, buffer.box.shape)
        array = state[key]
        if array.dtype != buffer.dtype or array.shape != buffer.box.shape:
            raise ValueError(
                f"region {buffer.region!r} on processor {buffer.proc} is {buffer.dtype}{list(buffer.box.shape)} here, "
                f"but its array is {array.dtype}{list(array.shape)}"
            )
        self._arrays[index] = array
        role = self.persistent.setdefault(buffer.role, {})
        assert key not in role, f"two persistent buffers are {key}"
        role[key] = array

    def _view(self, view: View) -> np.ndarray:
        """The view's array: strided where its box is not one run of the buffer's."""
        buffer = self._graph.buffers[view.buffer]
        if view.buffer not in self._arrays:
            offset = int(self._packing.offset[view.buffer]) - self._floor
            self._arrays[view.buffer] = _array(self.arena, offset, buffer.dtype, buffer.box.shape)
        array = self._arrays[view.buffer]
        part = array[slices(relative(view.box, buffer.box))] if array.ndim else array
        return part if view.shape is None else _reshaped(part, view.shape)

    def _private(self, task: Task) -> np.ndarray:
        """The memory of the task's temporaries and scratch."""
        nbytes = int(self._graph.private_bytes[task.index])
        offset = int(self._packing.private_offset[task.index]) - self._floor if nbytes else 0
        assert offset >= 0, "persistent buffers must lie below all others"
        return self.arena[offset : offset + nbytes]

    def _bind(self, call: Call, operands: dict[str, list], private: np.ndarray) -> Callable[[], object]:
        def operand(arg: object) -> object:
            return arg.among(operands) if isinstance(arg, Arg) else arg

        end = call.scratch_offset + call.scratch_bytes
        scratch = private[call.scratch_offset : end] if call.scratch_bytes else None
        args = tuple(operand(arg) for arg in call.args)
        outs = tuple(out.among(operands) for out in call.outs)
        return self._table.bind(call.kernel, args, outs, dict(call.params), scratch, call.accumulate)

    def _side(self, comm: Comm) -> Side:
        """This processor's side of a transfer."""
        return Side(comm.form, comm.group, *self._member(comm), comm.counts)

    def _member(self, comm: Comm) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
        """This processor's send, receive and scratch, flat."""
        member = comm.group.index(self.proc)
        send, receive = (self._flat(views[member]) for views in (comm.send, comm.receive))
        scratch = self._flat(comm.scratch[member])
        some = send if send is not None else receive
        if scratch is not None and some is not None:
            scratch = scratch.view(some.dtype)
        return send, receive, scratch

    def _flat(self, view: View | None) -> np.ndarray | None:
        if view is None:
            return None
        return _reshaped(self._view(view), (-1,))

    def _begun_by(self, task: Task, private: np.ndarray) -> list[np.ndarray]:
        """The memory that is to be poisoned when this task begins: its own, and that of buffers born with it."""
        if not self._poison:
            return []
        memories = [private] if private.nbytes else []
        for index in self._born.get(task.index, ()):
            offset = int(self._packing.offset[index]) - self._floor
            memories.append(self.arena[offset : offset + int(self._graph.buffer_bytes[index])])
        return memories

    def _poisoning(self, memory: np.ndarray) -> Callable[[], object]:
        """The call that fills memory with NaN."""
        return partial(memory.fill, POISON)

    def _lent_or_new(self, nbytes: int) -> np.ndarray:
        """Aligned bytes of what was lent, as far as that goes, or others."""
        if self._lent is not None and self._lent.nbytes >= nbytes:
            memory, self._lent = self._lent[:nbytes], self._lent[nbytes:]
            return memory
        self.nbytes += nbytes
        return self._allocate(nbytes)

    def _allocate(self, nbytes: int) -> np.ndarray:
        """Aligned bytes: zeros, or poison."""
        raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
        begin = -raw.ctypes.data % ALIGNMENT
        memory = raw[begin : begin + nbytes]
        if self._poison:
            memory.fill(POISON)
        return memory


def watched(look: base.Look) -> type[Backend]:
    """The backend that shows each task that computes as soon as it has run, with the arrays of its views."""

    class Watched(Backend):
        """A processor whose every task is looked at."""

        def compute(self, task: Task) -> Callable[[], object]:
            run, arrays = super().compute(task), [self._view(view) for view in task.views]

            def both() -> None:
                run()
                look(task, arrays)

            return both

    return Watched


@cache
def _table() -> Table:
    return Table("numpy")


def _aligned(nbytes: np.ndarray | int) -> np.ndarray | int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _array(memory: np.ndarray, offset: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A dense array at that byte offset of the memory."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    assert offset >= 0 and offset + nbytes <= memory.nbytes, f"{nbytes} bytes at {offset} lie outside {memory.nbytes}"
    return memory[offset : offset + nbytes].view(dtype).reshape(shape)


def _reshaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The same memory in another shape."""
    assert array.flags.c_contiguous, (
        f"an array of shape {array.shape}, strides {array.strides} is not one run of memory"
    )
    return array.reshape(shape)


def _after(first: Callable[[], object], begin: Callable[[], Request]) -> Callable[[], Request]:
    def run() -> Request:
        first()
        return begin()

    return run

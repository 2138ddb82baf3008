"""The backend for NVIDIA GPUs: CuPy arrays in one allocation, kernels in Triton, a step put onto streams as a whole.

Where everything lies is the numpy backend's business; here the memory is a device's. It does not know when a step is
run, nor what its kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cupy
import numpy as np

from castile.runtime.backends import base, numpy
from castile.runtime.backends.cuda.issuer import Issuer
from castile.runtime.backends.cuda.kernels import DeviceTable
from castile.runtime.comm.base import End
from castile.runtime.executor import Program
from castile.runtime.memory import Packing
from castile.runtime.task import Task, TaskGraph
from castile.runtime.worker import Action, Worker


class Backend(numpy.Backend):
    """A processor whose memory is that of the current device.

    compute   the stream of its kernels. traffic: that of its transfers
    nbytes    the arenas alone; workspace_bytes: what kernels want besides, which no plan knows of
    """

    def __init__(self, graph: TaskGraph, packing: Packing, proc: int, state: base.State, poison: bool) -> None:
        self.compute_stream, self.traffic = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        with self.compute_stream:
            super().__init__(graph, packing, proc, state, poison)
        self._table = self._kernels = DeviceTable(self.compute_stream)
        self._inputs = {id(array): array for array in self.persistent.get("input", {}).values()}
        self._staged: dict[int, np.ndarray] = {}
        self.workspace_bytes = 0

    def compute(self, task: Task) -> Callable[[], object]:
        with self.compute_stream:
            return super().compute(task)

    def worker(self, steps: Program, tasks: Sequence[Task], tags: Sequence[int], end: End) -> Worker:
        pool = cupy.get_default_memory_pool()
        before = pool.total_bytes()
        parts = zip(tasks, tags, steps.asynchronous, strict=True)
        actions = [self._streamed(task, end, tag) if moves else self.compute(task) for task, tag, moves in parts]
        self.workspace_bytes = pool.total_bytes() - before
        return Issuer(steps, actions, self.compute_stream, self.traffic, end.check, self._kernels.on_host)

    def fill(self, array: Any, values: np.ndarray | float) -> None:
        """As for others; inputs of the graph go by way of pinned memory, and the step waits for them on the device."""
        if id(array) in self._inputs:
            staged = self._staging(array)
            staged[...] = values
            array.data.copy_from_host_async(staged.ctypes.data, staged.nbytes, self.compute_stream)
        else:
            there = np.empty(array.shape, array.dtype)
            there[...] = values
            array.set(there, stream=self.compute_stream)
            self.compute_stream.synchronize()

    def read(self, array: Any) -> np.ndarray:
        """A copy."""
        there: np.ndarray = array.get(stream=self.compute_stream)
        return there

    def _staging(self, array: Any) -> np.ndarray:
        """An input's place in pinned memory. What it held before has been copied: a step has been waited for since."""
        if id(array) not in self._staged:
            memory = np.frombuffer(cupy.cuda.alloc_pinned_memory(max(array.nbytes, 1)), np.uint8, array.nbytes)
            self._staged[id(array)] = memory.view(array.dtype).reshape(array.shape)
        return self._staged[id(array)]

    def _streamed(self, task: Task, end: End, tag: int) -> Action:
        """This processor's part of a transfer as a call that puts it onto the stream of transfers."""
        comm = task.comm
        assert comm is not None
        send: Any
        receive: Any
        send, receive, scratch = self._member(comm)
        if comm.form == "move" and comm.group[0] == comm.group[1]:
            assert send is not None and receive is not None
            begin: Action = partial(receive.data.copy_from_device_async, send.data, send.nbytes, self.traffic)
        else:
            found = end.streamed(comm.form, comm.group, send, receive, scratch, comm.counts, tag, self.traffic)
            assert found is not None, "transfers between GPUs need a communicator that puts them onto streams"
            begin = found
        poisoned = self._begun_by(task, self._private(task))
        return numpy.chain([*(_set(memory, numpy.POISON, self.traffic) for memory in poisoned), begin])

    def _poisoning(self, memory: Any) -> Callable[[], object]:
        return _set(memory, numpy.POISON, self.compute_stream)

    def _allocate(self, nbytes: np.ndarray | int) -> Any:
        """Bytes of the device, none of them in a pool: zeros, or poison."""
        block = cupy.cuda.Memory(int(nbytes))
        memory = cupy.ndarray((int(nbytes),), np.uint8, cupy.cuda.MemoryPointer(block, 0))
        _set(memory, numpy.POISON if self._poison else 0, self.compute_stream)()
        return memory


def _set(memory: Any, value: int, stream: Any) -> Callable[[], object]:
    """The call that sets all bytes to a value."""
    return partial(memory.data.memset_async, value, memory.nbytes, stream)

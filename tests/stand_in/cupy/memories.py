"""Memory of the stand-in's devices, and that of the host which these reach.

What nobody holds any more is refused where it is copied, and is garbage to whoever still reads it.
"""

from __future__ import annotations

import ctypes
from weakref import finalize

import numpy as np

from tests.stand_in.cupy import cuda

# What memory holds that nobody has any more: NaN in every float.
GARBAGE = 0xFF
# Of each kind of copy whether it leads from a device, and to one.
KINDS = {1: (False, True), 2: (True, False), 3: (True, True)}


class Memory:
    """Bytes of the current device. They are gone when nobody holds them any more: others have them then."""

    def __init__(self, size: int) -> None:
        cuda.refuse_in_capture("memory cannot be allocated")
        cuda.refuse_broken(cuda.world.device)
        self.size, self.device_id = size, cuda.world.device
        self.host = np.random.default_rng(0).integers(0, 256, size + 512, dtype=np.uint8)
        self._begin = -self.host.ctypes.data % 512 if size else 0
        self.ptr = self.host.ctypes.data + self._begin if size else 0
        cuda.world.live[self.ptr] = self
        finalize(self, self.host.fill, GARBAGE)

    def bytes(self, offset: int, nbytes: int) -> np.ndarray:
        assert 0 <= offset and offset + nbytes <= self.size, f"{nbytes} bytes at {offset} of {self.size}"
        return self.host[self._begin + offset : self._begin + offset + nbytes]


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem, self.offset = mem, offset
        self.ptr, self.device_id = mem.ptr + offset, mem.device_id

    def bytes(self, nbytes: int) -> np.ndarray:
        return self.mem.bytes(self.offset, nbytes)

    def memset_async(self, value: int, size: int, stream: cuda.Stream | None = None) -> None:
        bytes_ = self.bytes(size)
        (stream or cuda.get_current_stream()).enqueue(lambda: bytes_.fill(value), "memset", self)

    def copy_from_host_async(self, source: int, size: int, stream: cuda.Stream | None = None) -> None:
        """The bytes are read when the copy is made, not when it is asked for."""
        memcpy_async(self.ptr, source, size, 1, (stream or cuda.get_current_stream()).ptr)

    def copy_to_host_async(self, target: int, size: int, stream: cuda.Stream | None = None) -> None:
        """The bytes are there when the copy is made."""
        memcpy_async(target, self.ptr, size, 2, (stream or cuda.get_current_stream()).ptr)

    def copy_from_device_async(self, source: MemoryPointer, size: int, stream: cuda.Stream | None = None) -> None:
        memcpy_async(self.ptr, source.ptr, size, 3, (stream or cuda.get_current_stream()).ptr)


def alloc_pinned_memory(size: int) -> ctypes.Array[ctypes.c_uint8]:
    """Memory of the host that a device may read and write, until nobody holds it any more."""
    cuda.refuse_in_capture("pinned memory cannot be allocated")
    made = (ctypes.c_uint8 * size)()
    ctypes.memset(made, GARBAGE, size)
    cuda.world.pinned[ctypes.addressof(made)] = made
    return made


def memory(ptr: int, nbytes: int) -> np.ndarray:
    """The bytes at an address of a device or of pinned memory. Raises CUDARuntimeError where none are, or no more."""
    return _found(ptr, nbytes)[1]


def _found(ptr: int, nbytes: int) -> tuple[bool, np.ndarray]:
    """Whether that address is a device's, and the bytes there."""
    for begin, held in cuda.world.live.items():
        if begin <= ptr and ptr + nbytes <= begin + held.size:
            return True, held.bytes(ptr - begin, nbytes)
    for begin, pinned in cuda.world.pinned.items():
        if begin <= ptr and ptr + nbytes <= begin + len(pinned):
            return False, np.frombuffer(pinned, np.uint8)[ptr - begin : ptr - begin + nbytes]
    raise cuda.CUDARuntimeError(f"cudaErrorIllegalAddress: {nbytes} bytes at {ptr:#x} are not allocated")


def memcpy_async(target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
    """The memory has to be there when the copy is asked for, and when it is made."""
    if KINDS[kind] != (_found(source, nbytes)[0], _found(target, nbytes)[0]):
        raise cuda.CUDARuntimeError(f"cudaErrorInvalidValue: copies of kind {kind} go another way")
    cuda.stream_of(stream).enqueue(lambda: np.copyto(memory(target, nbytes), memory(source, nbytes)), "copy")

"""A stand-in for CuPy: arrays in the memory of a pretended device, of which the host sees only copies.

It has as much of CuPy as castile uses. What it cannot show: speeds, and that a real device does the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.stand_in.cupy import cuda

float32, uint8 = np.float32, np.uint8
dtype = np.dtype


class ndarray:
    """An array of the device. Like CuPy's it does not turn into one of NumPy's by itself."""

    __array_priority__ = 100

    def __init__(
        self, shape: Any, dtype: Any = np.float32, memptr: cuda.MemoryPointer | None = None, host: Any = None
    ) -> None:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = np.dtype(dtype)
        if host is None:
            nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            memptr = memptr if memptr is not None else cuda.MemoryPointer(cuda.Memory(nbytes), 0)
            host = memptr.bytes(nbytes).view(kind).reshape(shape)
        self.on_device: np.ndarray = host
        self._memory = memptr

    @property
    def data(self) -> cuda.MemoryPointer:
        assert self._memory is not None
        base = self._memory.mem
        return cuda.MemoryPointer(base, self.on_device.__array_interface__["data"][0] - base.ptr if base.size else 0)

    @property
    def device(self) -> cuda.Device:
        return cuda.Device(self.data.device_id)

    shape = property(lambda self: self.on_device.shape)
    strides = property(lambda self: self.on_device.strides)
    dtype = property(lambda self: self.on_device.dtype)
    itemsize = property(lambda self: self.on_device.itemsize)
    nbytes = property(lambda self: self.on_device.nbytes)
    size = property(lambda self: self.on_device.size)
    ndim = property(lambda self: self.on_device.ndim)
    flags = property(lambda self: self.on_device.flags)

    def __len__(self) -> int:
        return len(self.on_device)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def _part(self, host: np.ndarray) -> ndarray:
        assert np.shares_memory(host, self.on_device) or not host.size
        return ndarray(host.shape, host.dtype, self._memory, host)

    def __getitem__(self, where: Any) -> ndarray:
        return self._part(self.on_device[where] if self.ndim else self.on_device)

    def __setitem__(self, where: Any, values: Any) -> None:
        """Other arrays of the device, as a kernel on the current stream."""
        assert isinstance(values, ndarray), "only arrays of the device"
        part = self.on_device[where]
        cuda.get_current_stream().enqueue(lambda: np.copyto(part, values.on_device), "assign", self.data)

    def view(self, dtype: Any) -> ndarray:
        return self._part(self.on_device.view(dtype))

    def reshape(self, *shape: Any) -> ndarray:
        return self._part(self.on_device.reshape(*shape))

    def transpose(self, *dims: Any) -> ndarray:
        return self._part(self.on_device.transpose(*dims))

    def get(self, stream: Any = None, out: np.ndarray | None = None, blocking: bool = True) -> np.ndarray:
        """A copy on the host, which waits for the stream."""
        assert blocking and out is None
        stream = stream or cuda.get_current_stream()
        stream.no_capture("a copy to the host that waits")
        found = np.empty(self.shape, self.dtype)
        stream.enqueue(lambda: np.copyto(found, self.on_device), "get", self.data)
        stream.synchronize()
        return found

    def set(self, values: np.ndarray, stream: Any = None) -> None:
        """Fills it from memory of the host that is not pinned, which is read at once."""
        if not self.flags.c_contiguous:
            raise RuntimeError("Cannot set to non-contiguous array")
        assert values.shape == self.shape and values.dtype == self.dtype
        stream = stream or cuda.get_current_stream()
        stream.no_capture("a copy from the host")
        taken = values.copy()
        stream.enqueue(lambda: np.copyto(self.on_device, taken), "set", self.data)


def empty(shape: Any, dtype: Any = np.float32) -> ndarray:
    """Memory that nobody wrote."""
    return ndarray(shape, dtype)


def asarray(values: np.ndarray) -> ndarray:
    """The numbers on the device."""
    made = ndarray(values.shape, values.dtype)
    made.set(np.ascontiguousarray(values))
    return made


class _Pool:
    def total_bytes(self) -> int:
        return 0


def get_default_memory_pool() -> _Pool:
    """A pool that is never used: backends allocate for themselves."""
    return _Pool()

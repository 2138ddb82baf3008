"""Inputs on their way to a device: by pinned memory into a place beside each, while a step still reads the ones before.

It does not know what they mean, nor when a step begins.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np


class Supply:
    """The way to the arrays of a device that steps read."""

    def __init__(self) -> None:
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._places: dict[int, _Place] = {}
        self._pending: dict[int, _Place] = {}

    @property
    def nbytes(self) -> int:
        """Of the device, besides the arrays themselves."""
        return sum(place.beside.nbytes for place in self._places.values())

    def put(self, array: Any, values: np.ndarray | float) -> None:
        """Numbers for an array, from the next `deliver` on; what was put before and not delivered is forgotten."""
        place = self._places.get(id(array)) or self._places.setdefault(id(array), _Place(array))
        # The numbers before have left the memory of the host, and have been taken from that beside the array.
        place.came.synchronize()
        place.on_host[...] = values
        self._stream.wait_event(place.taken)
        place.beside.data.copy_from_host_async(place.on_host.ctypes.data, array.nbytes, self._stream)
        place.came.record(self._stream)
        self._pending[id(array)] = place

    def deliver(self, stream: Any) -> None:
        """Puts onto the stream on which the next step begins what that one reads."""
        for place in self._pending.values():
            stream.wait_event(place.came)
            place.array.data.copy_from_device_async(place.beside.data, place.array.nbytes, stream)
            place.taken.record(stream)
        self._pending.clear()


class _Place:
    """Where an array's numbers wait: in pinned memory, then on the device; and when they came and were taken."""

    def __init__(self, array: Any) -> None:
        self.array = array
        # An address is wanted even where there are no elements.
        nbytes = max(array.nbytes, 1)
        memory = np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, array.nbytes)
        self.on_host = memory.view(array.dtype).reshape(array.shape)
        place = cupy.cuda.MemoryPointer(cupy.cuda.Memory(nbytes), 0)
        self.beside = cupy.ndarray(array.shape, array.dtype, place)
        self.came, self.taken = (cupy.cuda.Event(disable_timing=True) for _ in range(2))

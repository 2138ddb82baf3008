"""What goes to a device before a step and comes from it after: by pinned memory, while other steps are under way.

Inputs wait in a place beside each, while a step still reads the ones before; results of two steps have room on the
host. It does not know what they mean, nor when a step begins or ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cupy
import numpy as np

# Larger results stay where they are until they are asked for.
MOST_RESULT_BYTES = 65536
# The step that has ended, and the one behind it.
NUM_STEPS = 2


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


class Results:
    """The way from those arrays of a device that steps make for the host, as far as they are small."""

    def __init__(self, arrays: Iterable[Any]) -> None:
        arrays = list(arrays)
        self._small = [array for array in arrays if 0 < array.nbytes <= MOST_RESULT_BYTES]
        self._on_host = {id(array): [_pinned(array) for _ in range(NUM_STEPS)] for array in self._small}
        self._num_fetched = self._num_come = 0
        self.are_small = len(self._small) == len(arrays)

    def fetch(self, stream: Any) -> None:
        """Puts copies to the host onto the stream of a step, behind it; no more than NUM_STEPS that have not come."""
        slot = self._num_fetched % NUM_STEPS
        for array in self._small:
            array.data.copy_to_host_async(self._on_host[id(array)][slot].ctypes.data, array.nbytes, stream)
        self._num_fetched += 1

    def come(self) -> None:
        """The first step whose results had not come has ended."""
        self._num_come += 1

    def read(self, array: Any) -> np.ndarray | None:
        """A copy of the result of the last step that has ended; None where it did not come this way."""
        slots = self._on_host.get(id(array))
        return slots[(self._num_come - 1) % NUM_STEPS].copy() if slots and self._num_come else None


class _Place:
    """Where an array's numbers wait: in pinned memory, then on the device; and when they came and were taken."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.on_host = _pinned(array)
        place = cupy.cuda.MemoryPointer(cupy.cuda.Memory(max(array.nbytes, 1)), 0)
        self.beside = cupy.ndarray(array.shape, array.dtype, place)
        self.came, self.taken = (cupy.cuda.Event(disable_timing=True) for _ in range(2))


def _pinned(array: Any) -> np.ndarray:
    """An array like that one, in memory of the host that devices reach."""
    # An address is wanted even where there are no elements.
    memory = np.frombuffer(cupy.cuda.alloc_pinned_memory(max(array.nbytes, 1)), np.uint8, array.nbytes)
    return memory.view(array.dtype).reshape(array.shape)

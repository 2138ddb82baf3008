"""Graphs: a step is captured, and then is one, each kernel with the priority of the stream on which it was captured.

CuPy makes graphs all of whose kernels have the priority of the stream on which they are launched. It does not know what
was captured.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import cupy

DRIVER = "libcuda.so.1"
# CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY of cuda.h
BY_NODE = 8


class Captured:
    """What was captured of a step, be it whole or still on its way: `graph` is None until it is whole.

    Both hold what calls of libraries need, which cannot be ended before they are gone.
    """

    def __init__(self) -> None:
        self.graph: Any = None
        self._origin: Any = None

    def take(self, origin: Any, issue: Callable[[], object], is_one: bool) -> None:
        """Captures what `issue` puts onto streams, beginning and ending with `origin`; whatever is raised ends it.

        is_one  whether all of it lies on that stream, and so has one priority
        """
        origin.begin_capture()
        self._origin = origin
        try:
            issue()
            whole = origin.end_capture()
            self._origin = None
            self.graph = whole if is_one else by_priority(whole)
        finally:
            self._abandon()

    def clear(self) -> None:
        """Nothing is captured any more."""
        self.graph = None
        self._abandon()

    def _abandon(self) -> None:
        """Ends a capture that is under way; what CUDA says to one that failed has been said already."""
        origin, self._origin = self._origin, None
        if origin is not None:
            with suppress(cupy.cuda.runtime.CUDARuntimeError):
                origin.end_capture()


def by_priority(captured: Any) -> Any:
    """What CuPy captured, with the priorities of its streams; as it is where the driver knows none."""
    made = ctypes.c_void_p()
    if _instantiate()(ctypes.byref(made), captured.graph, BY_NODE):
        return captured
    assert made.value is not None
    return _Graph(captured, made.value)


class _Graph:
    """A graph in CuPy's place; it was made of what CuPy `captured`."""

    def __init__(self, captured: Any, address: int) -> None:
        self.captured, self._address = captured, address
        weakref.finalize(self, cupy.cuda.runtime.graphExecDestroy, address)

    def launch(self, stream: Any) -> None:
        """Puts all of it onto a stream."""
        cupy.cuda.runtime.graphLaunch(self._address, stream.ptr)


@cache
def _instantiate() -> Any:
    function = ctypes.CDLL(DRIVER).cuGraphInstantiateWithFlags
    function.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_ulonglong)
    return function

"""Graphs: a captured step as a device runs it, each kernel with the priority of the stream on which it was captured.

CuPy makes graphs all of whose kernels have the priority of the stream on which they are launched. It does not know what
was captured.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import Any

import cupy

DRIVER = "libcuda.so.1"
# CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY of cuda.h
BY_NODE = 8


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

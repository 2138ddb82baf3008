"""What CUDA refuses, or leaves to chance, the stand-in for it refuses: else a test on it would pass that should not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.late import LateTable, device


@pytest.fixture
def cupy() -> Iterator[ModuleType]:
    with device() as made:
        yield made


def pinned(cupy: Any, values: np.ndarray) -> np.ndarray:
    """The values in memory of the host that a device reaches."""
    there = np.frombuffer(cupy.cuda.alloc_pinned_memory(values.nbytes), values.dtype)
    there[:] = values
    return there


def copy(cupy: Any, to: int, of: int, kind: int) -> None:
    cupy.cuda.runtime.memcpyAsync(to, of, 8, kind, cupy.cuda.get_current_stream().ptr)


def captured(cupy: Any, issue: Callable[[], object]) -> Any:
    """The graph of what is put onto a stream."""
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        issue()
        return stream.end_capture()


def a_copy_up_that_goes_down(cupy: Any) -> None:
    """cudaErrorInvalidValue"""
    on_host, on_device = pinned(cupy, np.ones(1)), cupy.empty(8, "uint8")
    copy(cupy, on_host.ctypes.data, on_device.data.ptr, 1)


def a_copy_down_that_goes_up(cupy: Any) -> None:
    """cudaErrorInvalidValue"""
    on_host, on_device = pinned(cupy, np.ones(1)), cupy.empty(8, "uint8")
    copy(cupy, on_device.data.ptr, on_host.ctypes.data, 2)


def a_copy_between_devices_of_the_host(cupy: Any) -> None:
    """cudaErrorInvalidValue"""
    on_host, on_device = pinned(cupy, np.ones(1)), cupy.empty(8, "uint8")
    copy(cupy, on_device.data.ptr, on_host.ctypes.data, 3)


def a_copy_from_memory_that_is_not_pinned(cupy: Any) -> None:
    """cudaErrorIllegalAddress"""
    on_host, on_device = np.ones(1), cupy.empty(8, "uint8")
    copy(cupy, on_device.data.ptr, on_host.ctypes.data, 1)


def a_copy_from_pinned_memory_that_is_gone(cupy: Any) -> None:
    """cudaErrorIllegalAddress"""
    on_device, gone = cupy.empty(8, "uint8"), [pinned(cupy, np.ones(1))]
    copy(cupy, on_device.data.ptr, gone[0].ctypes.data, 1)
    gone.clear()
    cupy.cuda.get_current_stream().synchronize()


def a_copy_from_memory_that_is_gone(cupy: Any) -> None:
    """cudaErrorIllegalAddress"""
    on_device, gone = cupy.empty(8, "uint8"), [cupy.empty(8, "uint8")]
    copy(cupy, on_device.data.ptr, gone[0].data.ptr, 3)
    gone.clear()
    cupy.cuda.get_current_stream().synchronize()


def a_graph_that_copies_from_memory_that_is_gone(cupy: Any) -> None:
    """cudaErrorIllegalAddress"""
    on_device, gone = cupy.empty(8, "uint8"), [cupy.empty(8, "uint8")]
    graph = captured(cupy, lambda: copy(cupy, on_device.data.ptr, gone[0].data.ptr, 3))
    gone.clear()
    stream = cupy.cuda.get_current_stream()
    graph.launch(stream)
    stream.synchronize()


def a_kernel_that_reads_memory_of_another_device(cupy: Any) -> None:
    """cudaErrorIllegalAddress"""
    x = cupy.asarray(np.ones(4))
    cupy.cuda.Device(1).use()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        LateTable(stream).bind("gelu", (x,), (cupy.empty(4, x.dtype),), {"approximate": "tanh"})()


def an_event_of_another_device(cupy: Any) -> None:
    """cudaErrorInvalidResourceHandle"""
    event = cupy.cuda.Event()
    cupy.cuda.Device(1).use()
    event.record(cupy.cuda.Stream(non_blocking=True))


def an_event_of_a_capture_that_has_ended(cupy: Any) -> None:
    """cudaErrorCapturedEvent"""
    event = cupy.cuda.Event()
    captured(cupy, lambda: event.record(cupy.cuda.get_current_stream()))
    cupy.cuda.Stream(non_blocking=True).wait_event(event)


# Each tells what CUDA says to it.
MISUSES = [made for name, made in list(globals().items()) if name.startswith(("a_", "an_"))]


@pytest.mark.parametrize("misuse", MISUSES, ids=lambda made: made.__name__)
def test_misuse_is_refused(misuse: Callable[[Any], None], cupy: Any) -> None:
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match=misuse.__doc__):
        misuse(cupy)


def test_what_still_reads_memory_that_is_gone_reads_garbage(cupy: Any) -> None:
    x = cupy.asarray(np.ones(4))
    x.get()
    seen = x.on_device
    del x
    assert np.isnan(seen).all()

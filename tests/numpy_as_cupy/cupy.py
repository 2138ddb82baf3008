"""NumPy under the name of CuPy, for programs of the benchmarks that shall run where there is no GPU.

Put its folder on PYTHONPATH and interpret Triton: arrays are NumPy's, streams do their work at once, graphs are empty.
What it cannot show: what a device refuses, and speeds.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy import exp, inf, linalg, log, matmul, repeat, tri, where  # noqa: F401  (what CuPy has)


class _Memory(SimpleNamespace):
    """Where an array lies, and what keeps it there."""


class ndarray(np.ndarray):  # type: ignore[type-arg]
    """An array that says where it lies as CuPy's do."""

    def __new__(cls, shape: Any, dtype: Any, memptr: Any = None, strides: Any = None) -> ndarray:
        return np.ndarray.__new__(cls, shape, dtype, memptr and memptr.owner, 0, strides)

    @property
    def data(self) -> Any:
        return _Memory(ptr=self.ctypes.data, owner=np.asarray(self).reshape(-1).view("uint8"))


def full(shape: Any, value: float, dtype: Any) -> Any:
    """An array of one number."""
    return np.full(shape, value, dtype).view(ndarray)


class _RandomState:
    def __init__(self, seed: int) -> None:
        self.made = np.random.default_rng(seed)

    def standard_normal(self, size: int, dtype: str) -> Any:
        return self.made.standard_normal(size, dtype).view(ndarray)

    def randint(self, low: int, high: int, size: int) -> Any:
        return self.made.integers(low, high, size).view(ndarray)


random = SimpleNamespace(RandomState=_RandomState)


class _Stream:
    ptr = 0

    def __init__(self, non_blocking: bool = False) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *why: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def begin_capture(self) -> None:
        pass

    def end_capture(self) -> Any:
        return SimpleNamespace(launch=lambda stream: None)


class _Event:
    def record(self, stream: Any = None) -> None:
        self.at = perf_counter()

    def synchronize(self) -> None:
        pass


def _move(to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
    ctypes.memmove(to, source, nbytes)


class _Refusal(Exception):
    """What never happens on a host."""


cuda = SimpleNamespace(
    Stream=_Stream,
    Event=_Event,
    Device=lambda number=0: nullcontext(),
    get_current_stream=_Stream,
    get_elapsed_time=lambda begin, end: 1e3 * (end.at - begin.at),
    memory=SimpleNamespace(OutOfMemoryError=_Refusal),
    runtime=SimpleNamespace(
        CUDARuntimeError=_Refusal,
        getDevice=lambda: 0,
        memGetInfo=lambda: (2**30, 2**30),
        getDeviceProperties=lambda device: {"l2CacheSize": 0},
        memcpyAsync=_move,
    ),
)


def get_default_memory_pool() -> Any:
    """A pool that holds nothing."""
    return SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=lambda: None)

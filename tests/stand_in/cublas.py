"""A stand-in for cuBLAS as ctypes meets it: functions of C's types over handles, that answer with a status.

It refuses what the manual says that the library refuses, and one thing more: a captured call without working memory of
the user's own, for which the library would put an allocation into the graph. What it cannot show: speeds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import ml_dtypes  # noqa: F401  (makes "bfloat16" a dtype of NumPy)
import numpy as np
from numpy.lib.stride_tricks import as_strided

from castile.kernels.cupy import blas

PATH = "a stand-in of cublas.so"
OK, NOT_INITIALIZED, ALLOC_FAILED, INVALID_VALUE, EXECUTION_FAILED, NOT_SUPPORTED = 0, 1, 3, 7, 13, 15
DTYPES = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16"}
# compute type: (type of a and b, type of c)
SUPPORTED = {68: {(0, 0), (2, 2), (14, 14), (2, 0), (14, 0)}, 70: {(1, 1)}}

pointer, integer, long, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong, ctypes.c_size_t
matrix = (pointer, integer, integer, long)
TYPES = {
    "cublasCreate_v2": (ctypes.POINTER(pointer),),
    "cublasSetStream_v2": (pointer, pointer),
    "cublasSetWorkspace_v2": (pointer, pointer, size),
    "cublasSetMathMode": (pointer, integer),
    "cublasGemmStridedBatchedEx": (
        pointer, *(integer,) * 5, pointer, *matrix, *matrix, pointer, *matrix, *(integer,) * 3,
    ),
}  # fmt: skip


@dataclass
class Handle:
    """What the library keeps of a handle; `math` is that of a new one."""

    device: int
    stream: int = 0
    workspace: int = 0
    math: int = 0


@dataclass(frozen=True)
class Place:
    """The machine below: bytes at an address, the current device, how work is put onto a stream, what is captured."""

    memory: Callable[[int, int], np.ndarray]
    put: Callable[[int, Callable[[], object]], object]
    device: Callable[[], int] = lambda: 0
    captures: Callable[[int], bool] = lambda stream: False


class Library:
    """The functions behind the library's names. Each answers with a status."""

    def __init__(self, place: Place) -> None:
        self.place, self.handles = place, dict[int, Handle]()
        # what the stand-in itself tripped over, which C cannot raise
        self.tripped: list[Exception] = []

    def opened(self) -> SimpleNamespace:
        """As ctypes opens it."""
        own = (self.create, self.set_stream, self.set_workspace, self.set_math, self.gemm)
        made = (ctypes.CFUNCTYPE(integer, *types)(self._answers(own)) for own, types in zip(own, TYPES.values()))
        return SimpleNamespace(**dict(zip(TYPES, made, strict=True)))

    def _answers(self, function: Callable[..., int]) -> Callable[..., int]:
        def answer(*args: Any) -> int:
            try:
                return function(*args)
            except Exception as error:
                self.tripped.append(error)
                return EXECUTION_FAILED

        return answer

    def create(self, place: Any) -> int:
        number = 1000 + len(self.handles)
        self.handles[number] = Handle(self.place.device())
        place[0] = number
        return OK

    def set_stream(self, number: int, stream: int) -> int:
        if number not in self.handles:
            return NOT_INITIALIZED
        self.handles[number].stream, self.handles[number].workspace = stream or 0, 0
        return OK

    def set_workspace(self, number: int, address: int, nbytes: int) -> int:
        if number not in self.handles:
            return NOT_INITIALIZED
        if not address or address % 256:
            return INVALID_VALUE
        self.place.memory(address, nbytes)
        self.handles[number].workspace = address
        return OK

    def set_math(self, number: int, mode: int) -> int:
        if number not in self.handles:
            return NOT_INITIALIZED
        self.handles[number].math = mode
        return OK

    def gemm(
        self, number: int, op_a: int, op_b: int, m: int, n: int, k: int, alpha: int, a: int, of_a: int, lda: int,
        step_a: int, b: int, of_b: int, ldb: int, step_b: int, beta: int, c: int, of_c: int, ldc: int, step_c: int,
        count: int, compute: int, algorithm: int,
    ) -> int:  # fmt: skip
        """C = alpha A B + beta C, columns together, for `count` of each."""
        handle = self.handles.get(number)
        if handle is None:
            return NOT_INITIALIZED
        leads = lda >= max(1, k if op_a else m) and ldb >= max(1, n if op_b else k) and ldc >= max(1, m)
        if min(m, n, k, count) < 0 or not {op_a, op_b} <= {0, 1, 2} or not leads or not (alpha and beta):
            return INVALID_VALUE
        if (of_a, of_c) not in SUPPORTED.get(compute, ()) or of_b != of_a or algorithm != -1:
            return NOT_SUPPORTED
        if handle.device != self.place.device():
            return EXECUTION_FAILED
        if self.place.captures(handle.stream) and not handle.workspace:
            return ALLOC_FAILED
        real = np.dtype("float64" if compute == 70 else "float32")
        # numbers of the host are read when the call is made
        one, add = (ctypes.cast(at, ctypes.POINTER(np.ctypeslib.as_ctypes_type(real)))[0] for at in (alpha, beta))
        x = self._matrices(a, of_a, (count, m, k), (step_a, *((lda, 1) if op_a else (1, lda))))
        y = self._matrices(b, of_b, (count, k, n), (step_b, *((ldb, 1) if op_b else (1, ldb))))
        z = self._matrices(c, of_c, (count, m, n), (step_c, 1, ldc))

        def work() -> None:
            made = one * np.matmul(x.astype("float64"), y.astype("float64"))
            z[...] = made + add * z.astype("float64") if add else made

        self.place.put(handle.stream, work)
        return OK

    def _matrices(self, address: int, of: int, shape: tuple[int, ...], steps: tuple[int, ...]) -> np.ndarray:
        dtype = np.dtype(DTYPES[of])
        nbytes = (1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))) * dtype.itemsize
        flat = self.place.memory(address, nbytes).view(dtype)
        return as_strided(flat, shape, tuple(dtype.itemsize * step for step in steps))


@contextmanager
def installed(library: Library) -> Iterator[Library]:
    """The library where ctypes opens that of CuPy; handles made before are forgotten, and these afterwards."""
    known, real = (blas._library, blas._handle, blas._workspace), ctypes.CDLL
    with patch.object(ctypes, "CDLL", lambda path: library.opened() if path == PATH else real(path)):
        try:
            for one in known:
                one.cache_clear()
            yield library
        finally:
            for one in known:
                one.cache_clear()
    assert not library.tripped, library.tripped

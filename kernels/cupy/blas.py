"""cuBLAS through ctypes, with a handle for each stream, so that its calls can be captured in CUDA graphs.

CuPy sets the stream of its one handle before each call, and refuses to during capture. A handle that keeps its stream
also keeps its workspace, so a captured call allocates nothing, and sums do not depend on what other streams do. It does
not know what is multiplied.
"""

import ctypes
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

_VOID, _INT, _LONG, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong, ctypes.c_size_t
_MATRIX = (_VOID, _INT, _INT, _LONG)
# As in cublas_api.h of CUDA 11 and later.
_PROTOTYPES = {
    "cublasCreate_v2": (_VOID,),
    "cublasSetStream_v2": (_VOID, _VOID),
    "cublasSetWorkspace_v2": (_VOID, _VOID, _SIZE),
    "cublasSetMathMode": (_VOID, _INT),
    "cublasGemmStridedBatchedEx": (
        _VOID, *(_INT,) * 5, _VOID, *_MATRIX, *_MATRIX, _VOID, *_MATRIX, *(_INT,) * 3,
    ),
}  # fmt: skip
# What NVIDIA recommends from Hopper on; older chips take 4 MiB of it.
_WORKSPACE_BYTES = 2**25
# Products of float32 without TF32, and parts of sums in the type of the sum: CUBLAS_DEFAULT_MATH, and
# CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION.
_MATH_MODE = 0 | 16


def gemm() -> Callable[..., None]:
    """cublasGemmStridedBatchedEx on CuPy's current device and stream, whatever is current when it is called.

    It raises RuntimeError where the library refuses.
    """
    cuda = import_module("cupy").cuda
    handle = _handle(cuda.runtime.getDevice(), cuda.get_current_stream().ptr)
    return partial(_library().cublasGemmStridedBatchedEx, handle)


@cache
def _handle(device: int, stream: int) -> int:
    library, made = _library(), _VOID()
    library.cublasCreate_v2(ctypes.byref(made))
    handle = made.value
    assert handle is not None
    # Working memory comes last: a stream that is set takes it away.
    library.cublasSetStream_v2(handle, stream)
    library.cublasSetWorkspace_v2(handle, _workspace(device, stream).data.ptr, _WORKSPACE_BYTES)
    library.cublasSetMathMode(handle, _MATH_MODE)
    return handle


@cache
def _workspace(device: int, stream: int) -> Any:
    """Working memory of a handle, which lives as long."""
    return import_module("cupy").empty(_WORKSPACE_BYTES, "uint8")


@cache
def _library() -> Any:
    """That which CuPy has loaded, wherever it was found: through CuPy's own module its functions are seen too."""
    library = ctypes.CDLL(import_module("cupy").cuda.cublas.__file__)
    for name, types in _PROTOTYPES.items():
        function = getattr(library, name)
        function.argtypes, function.errcheck = types, partial(_check, name)
    return library


def _check(name: str, status: int, function: Any, args: tuple[Any, ...]) -> None:
    if status:
        raise RuntimeError(f"{name} of cuBLAS ended with status {status}")

"""Matrix products through the BLAS of SciPy, by pointer: any row distance, adding into the result, and no copies.

It knows no kernel and no einsum.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cython_blas

_NUM_ARGUMENTS = 13


def _routine(name: str) -> Callable[..., Any]:
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = cython_blas.__pyx_capi__[name]
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * _NUM_ARGUMENTS)
    return prototype(get_pointer(capsule, get_name(capsule)))


_GEMM = {"float32": (_routine("sgemm"), ctypes.c_float), "float64": (_routine("dgemm"), ctypes.c_double)}
_LETTER = {False: ctypes.c_char(b"N"), True: ctypes.c_char(b"T")}


def has_gemm(dtype: np.dtype) -> bool:
    """Whether BLAS multiplies matrices of `dtype`."""
    return dtype.name in _GEMM


class Matrix(NamedTuple):
    """A rows x cols matrix in memory: `lead` elements from one row (of its transpose, if `turned`) to the next."""

    rows: int
    cols: int
    lead: int
    turned: bool

    @property
    def transposed(self) -> "Matrix":
        """The same memory, rows and columns exchanged."""
        return Matrix(self.cols, self.rows, self.lead, not self.turned)


def matrix(rows: int, cols: int, row_step: int, col_step: int) -> Matrix | None:
    """How BLAS can see a matrix with these distances in elements; None if it cannot."""
    if (col_step == 1 or cols == 1) and (row_step >= cols or rows == 1):
        return Matrix(rows, cols, max(row_step if rows > 1 else cols, 1), False)
    if (row_step == 1 or rows == 1) and (col_step >= rows or cols == 1):
        return Matrix(rows, cols, max(col_step if cols > 1 else rows, 1), True)
    return None


class Gemm:
    """C = A B, or C += A B, for matrices of one shape at many places."""

    def __init__(self, dtype: np.dtype, a: Matrix, b: Matrix, c: Matrix) -> None:
        self.call, real = _GEMM[dtype.name]
        self.swapped = c.turned
        if c.turned:
            a, b, c = b.transposed, a.transposed, c.transposed
        # BLAS counts columns first, so it is given the transposed product: C' = B' A'.
        sizes = [ctypes.c_int(size) for size in (c.cols, c.rows, a.cols)]
        self.head: list[Any] = [_LETTER[b.turned], _LETTER[a.turned], *sizes, real(1)]
        self.leads = tuple(ctypes.c_int(x.lead) for x in (b, a, c))
        self.betas = {False: real(0), True: real(1)}

    def at(self, a: int, b: int, c: int, adds: bool) -> Callable[[], Any]:
        """The product with the matrices at these addresses."""
        if self.swapped:
            a, b = b, a
        refs = [ctypes.byref(one) for one in (*self.head, *self.leads, self.betas[adds])]
        (of_b, of_a, cols, rows, inner, one, ldb, lda, ldc, beta) = refs
        pa, pb, pc = (ctypes.c_void_p(place) for place in (a, b, c))
        return partial(self.call, of_b, of_a, cols, rows, inner, one, pb, ldb, pa, lda, beta, pc, ldc)


def address(x: np.ndarray) -> int:
    """Where x's first element lies."""
    return int(x.__array_interface__["data"][0])

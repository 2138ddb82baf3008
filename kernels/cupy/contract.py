"""Contractions as matrix products by cuBLAS: one call, with one batch dim, for each index of the remaining labels.

It knows nothing of what is contracted. Nothing is packed or allocated: what cuBLAS cannot express has no form here.
"""

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from castile.kernels.cupy import blas
from castile.kernels.form import leads, offers, prepares
from castile.kernels.numpy.contract import parse
from castile.kernels.numpy.gemm import Matrix, matrix
from castile.kernels.triton.views import View, in_memory_order, loop_nest, view

# cudaDataType and cublasComputeType_t of CUDA 11 and later: float16 and bfloat16 are summed in float32.
_TYPES = {"float16": (2, 68), "bfloat16": (14, 68), "float32": (0, 68), "float64": (1, 70)}
_DEFAULT_ALGORITHM = -1
# Where more calls are needed, their starts take longer than what they do.
_MOST_CALLS = 64
# Of so many rows, columns and summed elements one call of it was .98 to .73 of what the fastest of our own took, in all
# products of a step of GPT-2 in bfloat16 on an H200 (benchmarks/results/h200-gpt2-ways.json).
_LEAST = 64
# Where rows of such matrices begin between 16 bytes it took 1.7 to 6 times as long as ours.
_VECTOR = 8
# cuBLAS counts in 32 bits.
_MOST = 2**31 - 1


class Dim(NamedTuple):
    """A dim of the contraction: its length, and its step in the operands and the result (in elements, 0: absent)."""

    size: int
    a: int
    b: int
    c: int


_NONE = Dim(1, 0, 0, 0)
# Which of the operands and the result bear a dim.
_ROWS, _COLUMNS, _SUMMED = (True, False, True), (False, True, True), (True, True, False)


class Products(NamedTuple):
    """Matrices as cuBLAS sees them, the dim over which it repeats them, and the dims over which it is called."""

    a: Matrix
    b: Matrix
    c: Matrix
    batch: Dim
    loops: tuple[Dim, ...]

    @property
    def largest(self) -> int:
        """The largest number passed to cuBLAS, but for distances between matrices."""
        return max(self.batch.size, *(n for one in (self.a, self.b, self.c) for n in (one.rows, one.cols, one.lead)))


def _settings(out: Any, spec: str, *xs: Any, scratch: Any, accumulate: bool) -> list[str]:
    return [""] if _as_products(out, spec, xs) else []


def _leads(out: Any, spec: str, *xs: Any, scratch: Any, accumulate: bool) -> bool:
    found = _as_products(out, spec, xs)
    if found is None or found.loops or min(found.a.rows, found.a.cols, found.b.cols) < _LEAST:
        return False
    return all(one.lead % _VECTOR == 0 for one in (found.a, found.b, found.c))


@prepares
@offers(_settings)
@leads(_leads)
def contract(out: Any, spec: str, *xs: Any, scratch: Any, accumulate: bool) -> Callable[[], Any] | None:
    """See the definition. Follows CuPy's current device and stream at the time when it is bound."""
    found = None if isinstance(out, np.ndarray) else _as_products(out, spec, xs)
    return found and _calls(found, out, xs, accumulate)


def _as_products(out: Any, spec: str, xs: tuple[Any, ...]) -> Products | None:
    """The products of a contraction; None where they are not for cuBLAS."""
    if len(xs) != 2 or xs[0].dtype != xs[1].dtype or xs[0].dtype.name not in _TYPES:
        return None
    # What is summed in float32 may stay so.
    if out.dtype != xs[0].dtype and (out.dtype.name, xs[0].dtype.itemsize) != ("float32", 2):
        return None
    terms, result = parse(spec, [x.ndim for x in xs])
    if 0 in (out.size, *(x.size for x in xs)) or any(len(set(term)) < len(term) for term in terms):
        return None
    return products([*map(view, xs), view(out)], [*terms, result])


def products(views: list[View], terms: list[str]) -> Products | None:
    """How cuBLAS does the largest products that it can; views and labels of both operands and the result.

    None where it would take too many calls, or would have to add up what several calls give.
    """
    sizes = {label: size for one, term in zip(views, terms, strict=True)
             for label, size in zip(term, one.shape, strict=True)}  # fmt: skip
    sorts = {bearers: _dims(views, terms, sizes, bearers) for bearers in product((False, True), repeat=3)}
    ms, ns, ks = (sorts.pop(one) for one in (_ROWS, _COLUMNS, _SUMMED))
    if len(ks) > 1 or any(dims and not bearers[2] for bearers, dims in sorts.items()):
        return None
    k, best, most = next(iter(ks), _NONE), None, 0
    for m, n in product([*ms, _NONE], [*ns, _NONE]):
        rest = [one for dims in (ms, ns, *sorts.values()) for one in dims if one is not m and one is not n]
        seen = (matrix(m.size, k.size, m.a, k.a), matrix(k.size, n.size, k.b, n.b), matrix(m.size, n.size, m.c, n.c))
        work = m.size * n.size
        if work > most and all(seen):
            rest.sort(key=lambda one: -one.size)
            best, most = Products(*seen, rest[0] if rest else _NONE, tuple(rest[1:])), work  # type: ignore[arg-type]
    return best if best and prod(one.size for one in best.loops) <= _MOST_CALLS and best.largest <= _MOST else None


def _dims(views: list[View], terms: list[str], sizes: dict[str, int], bearers: tuple[bool, ...]) -> list[Dim]:
    """The merged dims of the labels that these bear."""
    labels = [x for x in sizes if tuple(x in term for term in terms) == bearers and sizes[x] > 1]
    if not labels:
        return []
    steps = [tuple(one.steps[term.index(x)] if bears else 0 for x in labels)
             for one, term, bears in zip(views, terms, bearers, strict=True)]  # fmt: skip
    shape = tuple(sizes[x] for x in labels)
    # Those whose steps tell the order come first.
    order = sorted(range(3), key=lambda n: not bearers[n])
    merged = loop_nest(in_memory_order([View(None, shape, steps[n]) for n in order]))
    by_number = dict(zip(order, merged.steps, strict=True))
    return [Dim(size, *(by_number[n][dim] for n in range(3))) for dim, size in enumerate(merged.sizes)]


def _calls(found: Products, out: Any, xs: tuple[Any, ...], accumulate: bool) -> Callable[[], Any]:
    (kind, compute), (of_c, _) = (_TYPES[x.dtype.name] for x in (xs[0], out))
    real = ctypes.c_double if out.dtype.name == "float64" else ctypes.c_float
    one, beta = real(1), real(accumulate)
    a, b, c = found.a, found.b, found.c
    operands, batch = [(xs[0], found.batch.a), (xs[1], found.batch.b)], found.batch
    if c.turned:
        a, b, c = b.transposed, a.transposed, c.transposed
        operands.reverse()
    # cuBLAS counts columns first, so it is given the transposed product: C' = B' A'.
    head = (int(b.turned), int(a.turned), c.cols, c.rows, a.cols, _address(one))
    calls = []
    for offsets in _offsets(found.loops):
        of_a, of_b = offsets[:2] if not found.c.turned else offsets[1::-1]
        pa, pb, pc = (x.data.ptr + at * x.itemsize for x, at in
                      ((operands[0][0], of_a), (operands[1][0], of_b), (out, offsets[2])))  # fmt: skip
        middle = (pb, kind, b.lead, operands[1][1], pa, kind, a.lead, operands[0][1], _address(beta))
        tail = (pc, of_c, c.lead, batch.c, batch.size, compute, _DEFAULT_ALGORITHM)
        calls.append((*head, *middle, *tail))
    # cuBLAS is given addresses, which keep nothing alive.
    return partial(_run, blas.gemm(), calls, (out, xs, one, beta))


def _offsets(dims: tuple[Dim, ...]) -> Iterator[tuple[int, int, int]]:
    for index in product(*(range(dim.size) for dim in dims)):
        a = sum(i * dim.a for i, dim in zip(index, dims, strict=True))
        b = sum(i * dim.b for i, dim in zip(index, dims, strict=True))
        yield a, b, sum(i * dim.c for i, dim in zip(index, dims, strict=True))


def _address(number: Any) -> int:
    return ctypes.addressof(number)


def _run(gemm: Callable[..., None], calls: list[tuple[Any, ...]], kept: Any) -> None:
    for call in calls:
        gemm(*call)

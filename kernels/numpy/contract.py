"""Contractions as matrix products: labels merge where strides allow, one of each kind is a matrix's, the others are
loops.

Matrices are multiplied in register tiles or by BLAS, whichever is expected to take less. An epilogue is applied to the
sums in place. It knows nothing of what is contracted. Operands are not packed: a dim that BLAS cannot step over becomes
a loop.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import product
from math import prod
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from castile.kernels.calls import chain, nothing
from castile.kernels.form import prepares
from castile.kernels.numpy.elementwise import updated_in_place
from castile.kernels.numpy.gemm import Gemm, Matrix, address, has_gemm, matrix
from castile.kernels.numpy.matmul import ALL, HalfSpace, blas_cost, products, tile_cost
from castile.kernels.numpy.views import Scratch, merge_dims

Ints = tuple[int, ...]
# That one label and a number are at least another label.
After = tuple[str, int, str]


class Label(NamedTuple):
    """One dim of the contraction: its length, and its step in a, b and the result (in elements, 0 where absent)."""

    size: int
    a: int
    b: int
    c: int

    @property
    def transposed(self) -> "Label":
        """Of the product of b and a."""
        return Label(self.size, self.b, self.a, self.c)


NONE = Label(1, 0, 0, 0)


class Split(NamedTuple):
    """Which labels a product has (m rows, n columns, k summed), and which are looped over; summed ones come last."""

    m: Label
    n: Label
    k: Label
    kept: tuple[Label, ...]
    summed: tuple[Label, ...]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns, and what is summed."""
        return self.m.size, self.n.size, self.k.size

    @property
    def transposed(self) -> "Split":
        """The transposed products, of b and a."""
        m, n, k, kept, summed = self
        others = (tuple(label.transposed for label in labels) for labels in (kept, summed))
        return Split(n.transposed, m.transposed, k.transposed, *others)

    def matrices(self) -> tuple[Matrix | None, Matrix | None, Matrix | None]:
        """a, b and the result as BLAS sees them."""
        m, n, k = self.m, self.n, self.k
        return (
            matrix(m.size, k.size, m.a, k.a),
            matrix(k.size, n.size, k.b, n.b),
            matrix(m.size, n.size, m.c, n.c),
        )


@prepares
def contract(
    out: np.ndarray, spec: str, *xs: np.ndarray, scratch: np.ndarray | None, accumulate: bool
) -> Callable[[], Any]:
    """See the definition. Two operands of one BLAS dtype are multiplied as matrices, anything else by einsum."""
    return contracted(out, spec, *xs, scratch=scratch, accumulate=accumulate)


def contracted(
    out: np.ndarray,
    spec: str,
    *xs: np.ndarray,
    scratch: np.ndarray | None = None,
    accumulate: bool = False,
    after: After | None = None,
) -> Callable[[], Any]:
    """As `contract`, given which terms are not zero; results without such terms need not be written."""
    terms, result = parse(spec, [x.ndim for x in xs])
    plain = all(len(set(term)) == len(term) for term in terms)
    if len(xs) == 2 and plain and has_gemm(out.dtype) and xs[0].dtype == xs[1].dtype == out.dtype:
        if any(x.size == 0 for x in xs):
            return nothing if accumulate else partial(out.fill, 0)
        return _matrix_products(out, xs[0], xs[1], terms, result, accumulate, after)
    spec = ",".join(terms) + "->" + result
    if not accumulate:
        return partial(np.einsum, spec, *xs, out=out)
    held = Scratch(scratch).take(out.shape, out.dtype)
    return chain([partial(np.einsum, spec, *xs, out=held), partial(np.add, out, held, out)])


@prepares
def contract_pointwise(
    out: np.ndarray, spec: str, expression: str, *xs: np.ndarray, **constants: float
) -> Callable[[], Any] | None:
    """See the definition."""
    work = updated_in_place(out, expression, xs[2:], constants)
    return work and chain([contract(out, spec, *xs[:2], scratch=None, accumulate=False), work])


def parse(spec: str, num_dims: list[int]) -> tuple[list[str], str]:
    """The labels of each operand and of the result, one letter a dim, `...` replaced by letters not used otherwise."""
    left, result = spec.replace(" ", "").split("->")
    terms = left.split(",")
    widths = [dims - len(term.replace("...", "")) for term, dims in zip(terms, num_dims, strict=True)]
    leading = "".join([c for c in ascii_letters if c not in spec][: max(widths)])
    return [term.replace("...", leading) for term in terms], result.replace("...", leading)


def _matrix_products(
    out: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    terms: list[str],
    result: str,
    accumulate: bool,
    after: After | None,
) -> Callable[[], Any]:
    three = (x, y, out)
    split = _split((*terms, result), tuple([z.shape for z in three]), tuple([z.strides for z in three]), out.itemsize)
    wanted = _half_space(split, [*terms, result], x.shape + y.shape, after) if after else ALL
    tiled = _in_tiles(out, x, y, split, accumulate, wanted)
    if tiled is not None:
        return tiled
    if not split.summed and not accumulate:
        return _batched(out, x, y, split)
    return _looped(out, x, y, split, accumulate)


@lru_cache(4096)
def _split(terms: tuple[str, ...], shapes: tuple[Ints, ...], strides: tuple[Ints, ...], itemsize: int) -> Split:
    """The choice for x, y and the result of these labels, shapes and steps in bytes: most products lie as others do."""
    return _best_split(_labels(terms, shapes, strides, itemsize))


def _labels(
    terms: tuple[str, ...], shapes: tuple[Ints, ...], strides: tuple[Ints, ...], itemsize: int
) -> list[list[Label]]:
    """Merged labels of four kinds: m (x and result), n (y and result), k (x and y) and loops (all others)."""
    steps = [dict(zip(term, one, strict=True)) for term, one in zip(terms, strides, strict=True)]
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, size in zip(term, shape, strict=True):
            assert sizes.setdefault(label, size) == size, "the vocabulary refuses unequal lengths"
    sorts: dict[tuple[bool, ...], list[str]] = {}
    for label in sizes:
        sorts.setdefault(tuple(label in one for one in steps), []).append(label)
    merged = {sort: _merged(labels, sizes, steps, itemsize) for sort, labels in sorts.items()}
    m, n, k = ((True, False, True), (False, True, True), (True, True, False))
    rest = [label for sort, labels in merged.items() if sort not in (m, n, k) for label in labels]
    return [merged.get(m, []), merged.get(n, []), merged.get(k, []), rest]


def _merged(names: list[str], sizes: dict[str, int], steps: list[dict[str, int]], itemsize: int) -> list[Label]:
    bearer = next(one for one in steps if names[0] in one)
    names = sorted(names, key=lambda name: -bearer[name])
    strides = [tuple(one.get(name, 0) for name in names) for one in steps]
    shape, strides = merge_dims(tuple(sizes[name] for name in names), strides)
    return [Label(size, *(one[i] // itemsize for one in strides)) for i, size in enumerate(shape)]


def _best_split(sorts: list[list[Label]]) -> Split:
    """The split with the largest product that BLAS can compute."""
    ms, ns, ks, rest = sorts
    best, most = None, 0
    for m, n, k in product([*ms, NONE], [*ns, NONE], [*ks, NONE]):
        # The outermost loop takes the longest steps in the result, so that memory is walked in order.
        kept = [x for x in [*ms, *ns, *rest] if x is not m and x is not n and x.c]
        summed = [x for x in [*ks, *rest] if x is not k and not x.c]
        split = Split(m, n, k, tuple(sorted(kept, key=lambda x: -x.c)), tuple(summed))
        work = m.size * n.size * k.size
        if work > most and all(split.matrices()):
            best, most = split, work
    assert best is not None, "single elements are matrices"
    return best


def _half_space(split: Split, terms: list[str], shape: Ints, after: After) -> HalfSpace:
    """The half space of indices that the causal condition means; ALL where its labels are not single dims of the
    product.
    """
    late, first, early = after
    sizes = dict(zip(terms[0] + terms[1], shape, strict=True))
    x, y, z = map(set, terms)
    turns = []
    for label, names in zip(split[:3], (x & z - y, y & z - x, x & y - z), strict=True):
        turns.append((names == {late}) - (names == {early}) if label.size == prod(sizes[n] for n in names) else 0)
    i, j, k = turns
    return HalfSpace((i, j, k), first) if sorted(turns) == [-1, 0, 1] else ALL


def _in_tiles(
    out: np.ndarray, x: np.ndarray, y: np.ndarray, split: Split, accumulate: bool, wanted: HalfSpace
) -> Callable[[], Any] | None:
    """A compiled loop over all products, where that is expected to take less than BLAS; else None."""
    num = prod(label.size for label in (*split.kept, *split.summed))
    here, turned = (_expected(one, out.itemsize) for one in (split, split.transposed))
    if min(here, turned) >= blas_cost(split.sizes, split.m.a != 1 and split.n.b != 1, num, out.itemsize):
        return None
    if turned < here:
        x, y, split, wanted = y, x, split.transposed, wanted.transposed
    m, n, k = split.m, split.n, split.k
    places = np.array([*_places(split, accumulate)], np.int64)
    return products(out, x, y, split.sizes, (m.c, n.c, m.a, k.a, k.b, n.b), places, wanted)


def _expected(split: Split, itemsize: int) -> float:
    return tile_cost(split.sizes, split.n.b != 1, split.n.c != 1, itemsize)


def _places(split: Split, accumulate: bool) -> Iterator[tuple[int, int, int, bool]]:
    """The offsets of each product's matrices in the result, a and b, in elements, and whether it is added."""
    for kept in _offsets(split.kept):
        adds = accumulate
        for summed in _offsets(split.summed):
            a, b, c = (i + j for i, j in zip(kept, summed, strict=True))
            yield c, a, b, adds
            adds = True


def _batched(out: np.ndarray, x: np.ndarray, y: np.ndarray, split: Split) -> Callable[[], Any]:
    """One call of NumPy's matmul, which costs less than calls of BLAS and loops over the kept labels itself."""
    m, n, k, kept, _ = split
    size = out.itemsize
    lead = tuple(label.size for label in kept)
    a = as_strided(x, (*lead, m.size, k.size), tuple(s * size for s in (*(i.a for i in kept), m.a, k.a)))
    b = as_strided(y, (*lead, k.size, n.size), tuple(s * size for s in (*(i.b for i in kept), k.b, n.b)))
    c = as_strided(out, (*lead, m.size, n.size), tuple(s * size for s in (*(i.c for i in kept), m.c, n.c)))
    return partial(np.matmul, a, b, c)


def _looped(out: np.ndarray, x: np.ndarray, y: np.ndarray, split: Split, accumulate: bool) -> Callable[[], Any]:
    a, b, c = split.matrices()
    assert a is not None and b is not None and c is not None
    gemm = Gemm(out.dtype, a, b, c)
    starts = address(out), address(x), address(y)
    calls = []
    for *places, adds in _places(split, accumulate):
        pc, pa, pb = (start + place * out.itemsize for start, place in zip(starts, places, strict=True))
        calls.append(gemm.at(pa, pb, pc, adds))
    work = chain(calls)
    if isinstance(work, partial):
        # BLAS is given addresses, which keep nothing alive.
        work.operands = (out, x, y)  # type: ignore[attr-defined]
    return work


def _offsets(labels: tuple[Label, ...]) -> Iterator[tuple[int, int, int]]:
    for index in product(*(range(label.size) for label in labels)):
        a = sum(i * label.a for i, label in zip(index, labels, strict=True))
        b = sum(i * label.b for i, label in zip(index, labels, strict=True))
        c = sum(i * label.c for i, label in zip(index, labels, strict=True))
        yield a, b, c

"""Scaled dot-product attention and its gradients, a bounded number of score blocks at a time.

It knows no projections. A block is some query rows of one (sample, head); the size of the scratch memory says how many
rows fit. Rows of scores have one more column, for their log-sum-exp or their dot product of dy and y.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import log
from typing import NamedTuple

import numpy as np

from castile.kernels.calls import Call, chain, nothing
from castile.kernels.form import prepares
from castile.kernels.numpy.contract import contracted
from castile.kernels.numpy.jit import compiled, exp, f32, row_max
from castile.kernels.numpy.views import Scratch

# Fewer query rows a block skip more of the keys that a causal mask hides; products want some tens of them.
_CAUSAL_ROWS = 64


class Blocks(NamedTuple):
    """Samples, heads and query rows worked on at once, and how many keys the first and the last of these rows see."""

    samples: slice
    heads: slice
    rows: slice
    first_keys: int
    num_keys: int

    def queries(self, x: np.ndarray) -> np.ndarray:
        """The part of x [b,heads,s,...] that belongs to these blocks."""
        return x[self.samples, self.heads, self.rows]

    def keys(self, x: np.ndarray) -> np.ndarray:
        """The part of x [b,heads,t,d] that these blocks see."""
        return x[self.samples, self.heads, : self.num_keys]

    def product(self, out: np.ndarray, spec: str, x: np.ndarray, y: np.ndarray, accumulate: bool = False) -> Call:
        """A contraction with queries s and keys t: what of it no mask hides."""
        return contracted(out, spec, x, y, accumulate=accumulate, after=("s", self.first_keys - 1, "t"))


@prepares
def attention(
    out: tuple[np.ndarray, np.ndarray],
    q: np.ndarray,
    kk: np.ndarray,
    v: np.ndarray,
    *,
    heads: int,
    causal: bool,
    offset: int,
    scale: float,
    scratch: np.ndarray,
) -> Call:
    """See the definition."""
    width = q.shape[2] // heads
    all_y, all_q, kk, v = (_by_head(x, width) for x in (out[0], q, kk, v))
    calls: list[Call] = []
    for y, q, lse in _sharing(kk, all_y, all_q, out[1]):
        for part in _blocks(q, kk, causal, offset, scratch.size):
            rows = _take(Scratch(scratch), part, q, kk)
            scores = rows[..., : part.num_keys]
            calls += [
                part.product(scores, "bhsd,bhtd->bhst", part.queries(q), part.keys(kk)),
                _by_row(_softmax, part, scale, rows),
                partial(np.copyto, part.queries(lse), rows[..., -1]),
                part.product(part.queries(y), "bhst,bhtd->bhsd", scores, part.keys(v)),
            ]
    return chain(calls) if calls else nothing


@prepares
def attention_grad(
    out: tuple[np.ndarray, np.ndarray, np.ndarray],
    dy: np.ndarray,
    q: np.ndarray,
    kk: np.ndarray,
    v: np.ndarray,
    y: np.ndarray,
    lse: np.ndarray,
    *,
    heads: int,
    causal: bool,
    offset: int,
    scale: float,
    scratch: np.ndarray,
) -> Call:
    """See the definition."""
    width = q.shape[2] // heads
    dq, dk, dv, dy, q, kk, v, y = (_by_head(x, width) for x in (*out, dy, q, kk, v, y))
    calls: list[Call] = []
    for number, queries in enumerate(_sharing(kk, dq, dy, q, y, lse)):
        calls += _gradients(number > 0, queries, (dk, dv, kk, v), causal, offset, scale, scratch)
    return chain(calls) if calls else nothing


def _gradients(
    adds: bool,
    queries: tuple[np.ndarray, ...],
    keys: tuple[np.ndarray, ...],
    causal: bool,
    offset: int,
    scale: float,
    scratch: np.ndarray,
) -> list[Call]:
    """The gradients of as many heads of queries as there are of keys; to keys and values they are added if `adds`."""
    dq, dy, q, y, lse = queries
    dk, dv, kk, v = keys
    calls: list[Call] = []
    for part in _blocks(q, kk, causal, offset, scratch.size // 2):
        memory = Scratch(scratch)
        rows, d_rows = _take(memory, part, q, kk), _take(memory, part, q, kk)
        p, ds = rows[..., : part.num_keys], d_rows[..., : part.num_keys]
        q_part, dy_part = part.queries(q), part.queries(dy)
        added = adds or part.rows.stop < q.shape[2]
        if not added:
            calls += [partial(x[part.samples, part.heads, part.num_keys :].fill, 0) for x in (dk, dv)]
        calls += [
            part.product(p, "bhsd,bhtd->bhst", q_part, part.keys(kk)),
            part.product(ds, "bhsd,bhtd->bhst", dy_part, part.keys(v)),
            partial(np.copyto, rows[..., -1], part.queries(lse)),
            contracted(d_rows[..., -1], "bhsd,bhsd->bhs", dy_part, part.queries(y)),
            _by_row(_softmax_grad, part, scale, rows, d_rows),
            part.product(part.queries(dq), "bhst,bhtd->bhsd", ds, part.keys(kk)),
            part.product(part.keys(dk), "bhst,bhsd->bhtd", ds, q_part, added),
            part.product(part.keys(dv), "bhst,bhsd->bhtd", p, dy_part, added),
        ]
    return calls


def _by_head(x: np.ndarray, width: int) -> np.ndarray:
    """x [b,s,heads*width] as a view [b,heads,s,width]."""
    return x.reshape(*x.shape[:2], x.shape[2] // width, width, copy=False).transpose(0, 2, 1, 3)


def _sharing(kk: np.ndarray, *queries: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Of arrays [b,heads,s,...] of queries the heads that come first in their groups of keys, then the second, ..."""
    shared = queries[0].shape[1] // kk.shape[1]
    for number in range(shared):
        yield tuple(x[:, number::shared] for x in queries)


def _blocks(q: np.ndarray, kk: np.ndarray, causal: bool, offset: int, nbytes: int) -> Iterator[Blocks]:
    """Blocks whose scores fit into nbytes, the rows that see most keys first."""
    batch, heads, num_rows, _ = q.shape
    capacity = nbytes // ((kk.shape[2] + 1) * q.itemsize)
    rows = min(num_rows, capacity, _CAUSAL_ROWS if causal else capacity)
    num_heads = min(heads, capacity // rows)
    samples = max(1, capacity // (rows * heads))
    for b in range(0, batch, samples):
        for h in range(0, heads, num_heads):
            for stop in range(num_rows, 0, -rows):
                start, total = max(0, stop - rows), kk.shape[2]
                seen = (offset + start + 1, min(total, offset + stop)) if causal else (total, total)
                yield Blocks(
                    slice(b, min(batch, b + samples)),
                    slice(h, min(heads, h + num_heads)),
                    slice(start, stop),
                    *seen,
                )


def _take(memory: Scratch, part: Blocks, q: np.ndarray, kk: np.ndarray) -> np.ndarray:
    return memory.take((*part.queries(q).shape[:3], kk.shape[2] + 1), q.dtype)


def _by_row(loop: Callable[..., None], part: Blocks, scale: float, *rows: np.ndarray) -> Call:
    """`loop` over rows of scores."""
    flats, (_, _, num, width), scale = [x.reshape(-1) for x in rows], rows[0].shape, rows[0].dtype.type(scale)
    return partial(loop, *flats, num, width, part.num_keys, part.first_keys, scale)


@compiled
def _softmax(scores, rows, width, cols, first, scale):  # type: ignore[no-untyped-def]
    """Scores become probabilities, 0 beyond the keys that a row sees; the last element of a row their log-sum-exp."""
    for r in range(scores.size // width):
        row = scores[r * width : (r + 1) * width]
        seen = min(cols, first + r % rows)
        top = row_max(row[:seen])
        total = scale - scale
        for j in range(seen):
            # not row[j] * scale - top * scale, of which one product alone is rounded: of large scores that is large
            row[j] = exp((row[j] - top) * scale)
            total += row[j]
        factor = f32(1) / total
        for j in range(seen):
            row[j] *= factor
        row[seen:cols] = 0
        row[width - 1] = top * scale + log(total)


@compiled
def _softmax_grad(scores, grads, rows, width, cols, first, scale):  # type: ignore[no-untyped-def]
    """Scores become probabilities, and their gradients the gradients of the products of q and k."""
    for r in range(scores.size // width):
        p, d = scores[r * width : (r + 1) * width], grads[r * width : (r + 1) * width]
        seen = min(cols, first + r % rows)
        lse, dot = p[width - 1], d[width - 1]
        for j in range(seen):
            # of large scores what is rounded in it is large, and a probability is at most 1
            share = p[j] * scale - lse
            p[j] = exp(f32(0) if share > 0 else share)
            d[j] = p[j] * (d[j] - dot) * scale
        p[seen:cols] = 0
        d[seen:cols] = 0

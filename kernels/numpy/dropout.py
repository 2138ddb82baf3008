"""Dropout: random bits are made on the stack for a few hundred elements at a time, then their rows are multiplied.

It knows no layer.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate as accumulated
from math import prod
from operator import mul
from typing import Any

import numpy as np

from castile.kernels.calls import nothing
from castile.kernels.form import prepares
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.pointers import BLOCK, after, pointer, spare
from castile.kernels.numpy.views import Shape, element_strides, flat, merge_dims

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FIRST, _SECOND = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEP_FIRST, _STEP_SECOND = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@prepares
def dropout(
    out: np.ndarray,
    x: np.ndarray,
    noise: np.ndarray,
    *,
    rate: float,
    salt: int,
    offset: Shape,
    whole: Shape,
    accumulate: bool,
) -> Callable[[], Any] | None:
    """See the definition."""
    if x.size == 0:
        return nothing
    # The index in the whole is walked as if it were an array, by steps of its own.
    inside = tuple(accumulated((1, *whole[:0:-1]), mul))[::-1] if whole else ()
    first = sum(o * step for o, step in zip(offset, inside, strict=True))
    shape, merged = merge_dims(x.shape, [element_strides(out), element_strides(x), inside])
    walk = np.array([shape or (1,), *(one or (0,) for one in merged)], np.int64)
    limit, scale = np.uint64(round(rate * 2**32)), x.dtype.type(1 / (1 - rate))
    # All that the loop takes of an array is where it begins: with its dims it would be compiled anew for each number.
    begins = (flat(one, 0, 1) for one in (out, x))
    return partial(
        _drop, *begins, walk, prod(shape[:-1]), noise.reshape(1), first, np.uint64(salt), limit, scale, accumulate
    )


@compiled
def _drop(out, x, walk, rows, noise, first, salt, limit, scale, adds):  # type: ignore[no-untyped-def]
    p_out, p_x, held = pointer(out), pointer(x), spare(x)
    key, last = np.uint64(noise[0]), walk.shape[1] - 1
    cols, s_out, s_x, s_index = walk[0, last], walk[1, last], walk[2, last], walk[3, last]
    for row in range(rows):
        o, v, index, rest = p_out, p_x, first, row
        for dim in range(last - 1, -1, -1):
            i = rest % walk[0, dim]
            rest //= walk[0, dim]
            o, v, index = after(o, i * walk[1, dim]), after(v, i * walk[2, dim]), index + i * walk[3, dim]
        done = 0
        while done < cols:
            here = index + done * s_index
            skip = here % 4
            # Elements that are no neighbours in the whole have no words in common.
            num = min(cols - done, BLOCK - skip) if s_index == 1 else 1
            _keeps(held, here // 4, (skip + num + 3) // 4, salt, key, limit, scale)
            _multiply(after(o, done * s_out), s_out, after(v, done * s_x), s_x, after(held, skip), num, adds)
            done += num


@compiled
def _keeps(held, first, num, salt, key, limit, scale):  # type: ignore[no-untyped-def]
    """What each of four elements for each of num counters is multiplied by."""
    zero = scale - scale
    for n in range(num):
        counter = np.uint64(first + n)
        a, b, c, d = counter & _LOW, counter >> _HALF, salt & _LOW, salt >> _HALF
        k, m = key & _LOW, key >> _HALF
        for _ in range(10):
            p, q = _FIRST * a, _SECOND * c
            a, b, c, d = (q >> _HALF) ^ b ^ k, q & _LOW, (p >> _HALF) ^ d ^ m, p & _LOW
            k, m = (k + _STEP_FIRST) & _LOW, (m + _STEP_SECOND) & _LOW
        held[4 * n] = zero if a < limit else scale
        held[4 * n + 1] = zero if b < limit else scale
        held[4 * n + 2] = zero if c < limit else scale
        held[4 * n + 3] = zero if d < limit else scale


@compiled
def _multiply(out, s_out, x, s_x, keep, num, adds):  # type: ignore[no-untyped-def]
    if adds:
        for j in range(num):
            out[j * s_out] += x[j * s_x] * keep[j]
    else:
        for j in range(num):
            out[j * s_out] = x[j * s_x] * keep[j]

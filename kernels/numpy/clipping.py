"""Clipping by the global norm: sums of squares by BLAS, and a scaling in one pass.

It knows no optimizer.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.calls import chain_all
from castile.kernels.form import prepares
from castile.kernels.numpy.copying import onto_zeros
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.pointers import after, pointer, spare
from castile.kernels.numpy.strided import FIRST, SECOND, block_size, elementwise, fetch, num_rows, room, settle


@prepares
def square_sum(out: np.ndarray, x: np.ndarray, *more: np.ndarray, accumulate: bool) -> Callable[[], Any] | None:
    """See the definition."""
    return onto_zeros(chain_all(_adding(out, one) for one in (x, *more)), accumulate, out)


def _adding(out: np.ndarray, x: np.ndarray) -> Callable[[], Any] | None:
    if x.flags.c_contiguous:
        return partial(_add_dot, out, x.reshape(-1))
    return elementwise(_add_squares, [x], out.reshape(1))


def _add_dot(out: np.ndarray, x: np.ndarray) -> None:
    out[...] += np.dot(x, x)


@compiled
def _add_squares(walk, x, total):  # type: ignore[no-untyped-def]
    plan, p_x = pointer(walk), pointer(x)
    s_x, a = after(plan, FIRST), spare(x)
    squares = x.dtype.type(0)
    for first in range(0, num_rows(plan), plan[4]):
        v = fetch(plan, s_x, p_x, first, a)
        for j in range(block_size(plan, first)):
            squares += v[j] * v[j]
    total[0] += squares


def clip_factor(out: tuple[np.ndarray, np.ndarray], squares: np.ndarray, *, most: float) -> None:
    """See the definition."""
    factor, norm = out
    norm[...] = np.sqrt(squares)
    factor[...] = np.minimum(1.0, most / (float(norm) + 1e-6))


@prepares
def times(
    out: np.ndarray | tuple[np.ndarray, ...], x: np.ndarray, factor: np.ndarray, *more: np.ndarray
) -> Callable[[], Any] | None:
    """See the definition."""
    rows = zip(out if isinstance(out, tuple) else (out,), (x, *more[::2]), (factor, *more[1::2]), strict=True)
    return chain_all(elementwise(_times, [to, one], by.reshape(1)) for to, one, by in rows)


@compiled
def _times(walk, out, x, factor):  # type: ignore[no-untyped-def]
    plan, p_out, p_x = pointer(walk), pointer(out), pointer(x)
    s_out, s_x = after(plan, FIRST), after(plan, SECOND)
    a, b = spare(out), spare(x)
    by = factor[0]
    for first in range(0, num_rows(plan), plan[4]):
        o, v = room(plan, s_out, p_out, first, a), fetch(plan, s_x, p_x, first, b)
        for j in range(block_size(plan, first)):
            o[j] = v[j] * by
        settle(plan, s_out, p_out, first, a)

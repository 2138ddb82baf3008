"""Adafactor: one pass to reduce squared gradients by row and column, one for the step's size, one to step.

It knows no learning-rate schedule.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from castile.kernels.calls import Call, chain
from castile.kernels.form import each_of, prepares
from castile.kernels.numpy.jit import compiled, inlined
from castile.kernels.numpy.optimizer import guarding, moves
from castile.kernels.numpy.pointers import after, pointer
from castile.kernels.numpy.views import (
    Scratch,
    element_strides,
    flat,
    has_contiguous_rows,
    is_forward,
    merge_dims,
    outer_offsets,
)
from castile.kernels.reference.optimizer import adafactor as definition


@prepares
def adafactor(
    out: tuple[np.ndarray, ...],
    w: np.ndarray,
    g: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    lr: np.ndarray,
    step: np.ndarray,
    *more: np.ndarray,
    beta2_decay: float,
    eps1: float,
    eps2: float,
    clip: float,
    decay: float,
    scratch: np.ndarray,
    guarded: bool = False,
) -> Call:
    """See the definition. In place."""
    arrays = w, g, rows, columns, lr, step, *more
    settings = (beta2_decay, eps1, eps2, clip, decay)
    works = [_one(made, *given, settings=settings, scratch=scratch) for made, given in each_of(out, arrays, 3)]
    return chain(works)


def _one(
    out: tuple[np.ndarray, ...],
    w: np.ndarray,
    g: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    lr: np.ndarray,
    step: np.ndarray,
    *guard: np.ndarray,
    settings: tuple[float, ...],
    scratch: np.ndarray,
) -> Call:
    """The update of one parameter, by the definition where an array's last dim is not dense, or a step is uneven."""
    beta2_decay, eps1, eps2, clip, decay = settings
    pieces = _matrices(*_at_least_matrix(out[0], g, *out[1:]))
    if pieces is None:
        words = {"beta2_decay": beta2_decay, "eps1": eps1, "eps2": eps2, "clip": clip, "decay": decay}
        defined = partial(definition, w, g, rows, columns, lr, step, *guard, **words, guarded=bool(guard))
        return partial(_take, out, defined)
    places = Scratch(scratch)
    totals, sums = places.take((2,), np.dtype("float64")), places.take(columns.shape[-1:] or (1,), np.dtype("float64"))
    count, rate, vector = step.reshape(1), lr.reshape(1), w.ndim < 2
    measure = [partial(_measure, *piece, totals, sums, count, beta2_decay, eps1, vector) for piece in pieces]
    ends = count, rate, w.size, eps1, eps2, clip, decay, vector
    moving = [partial(_step, *piece, totals, *ends) for piece in pieces]
    work = chain([partial(totals.fill, 0), *measure, *moving])
    return chain([*moves(out, (w, rows, columns)), guarding(work, *guard)])


def _take(out: tuple[np.ndarray, ...], give: Callable[[], tuple[np.ndarray, ...]]) -> None:
    for to, made in zip(out, give(), strict=True):
        np.copyto(to, made)


def _at_least_matrix(w: np.ndarray, g: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """A scalar or a vector as a matrix of one row, with its state."""
    if w.ndim > 1:
        return w, g, rows, columns
    w, g, rows, columns = (x.reshape(1) if x.ndim == 0 else x for x in (w, g, rows, columns))
    return w[None], g[None], rows, columns


def _matrices(w: np.ndarray, g: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> list[tuple[Any, ...]] | None:
    """For `_measure` and `_step`: how many matrices of how many rows and columns, and each array as its elements, the
    distance from matrix to matrix, and from row to row (0 for state), in elements.

    None where an array's last dim is not dense, or a step is uneven.
    """
    arrays = w, g, rows, columns
    if not (is_forward(*arrays) and has_contiguous_rows(*arrays)):
        return None
    own = 2, 2, 1, 1
    shape, strides = merge_dims(w.shape[:-2], [x.strides[: x.ndim - n] for x, n in zip(arrays, own, strict=True)])
    num = shape[-1] if shape else 1
    pieces = []
    for offsets in outer_offsets(shape[:-1], [one[:-1] for one in strides]):
        lain = []
        for x, n, one, offset in zip(arrays, own, strides, offsets, strict=True):
            far = one[-1] // x.itemsize if one else 0
            near = element_strides(x)[-2] if n == 2 else 0
            length = (num - 1) * far + (x.shape[-2] - 1 if n == 2 else 0) * near + x.shape[-1]
            lain.append((flat(x, offset // x.itemsize, length), far, near))
        pieces.append(((num, *w.shape[-2:]), *lain))
    return pieces


@inlined
def _line(x, n, i):  # type: ignore[no-untyped-def]
    """Where row i of matrix n begins."""
    return after(pointer(x[0]), n * x[1] + i * x[2])


@compiled
def _measure(shape, w, g, rows, columns, totals, sums, count, beta2_decay, eps1, vector):  # type: ignore[no-untyped-def]
    """Renews the state; adds to totals the squares of the parameter and of the step before it is clipped."""
    (num, height, width), real = shape, w[0].dtype.type
    share = count[0] ** beta2_decay
    for n in range(num):
        state_r, state_c = _line(rows, n, 0), _line(columns, n, 0)
        mean = 0.0
        sums[:] = 0
        for i in range(height):
            x, y = _line(w, n, i), _line(g, n, i)
            across = whole = 0.0
            for j in range(width):
                square = np.float64(y[j]) * np.float64(y[j])
                sums[j] += square
                across += square
                whole += np.float64(x[j]) * np.float64(x[j])
            totals[0] += whole
            if not vector:
                state_r[i] = (1 - share) * state_r[i] + share * (across / width)
            mean += state_r[i]
        for j in range(width):
            state_c[j] = (1 - share) * state_c[j] + share * (sums[j] / height)
        mean = max(mean / height, eps1)
        for i in range(height):
            factor = real(1 if vector else state_r[i] / mean)
            totals[1] += _squares(width, _line(g, n, i), state_c, factor, real(eps1 * eps1))


@compiled
def _squares(num, y, state, factor, least):  # type: ignore[no-untyped-def]
    total = least - least
    for j in range(num):
        total += y[j] * y[j] / max(factor * state[j], least)
    return total


@compiled
def _step(shape, w, g, rows, columns, totals, count, lr, size, eps1, eps2, clip, decay, vector):  # type: ignore[no-untyped-def]
    (num, height, width), real = shape, w[0].dtype.type
    rate = max(eps2, math.sqrt(totals[0] / size)) * min(np.float64(lr[0]), 1 / math.sqrt(count[0]))
    rate = real(rate / max(1.0, math.sqrt(totals[1] / size) / clip))
    kept, least = real(1 - lr[0] * decay), real(eps1 * eps1)
    for n in range(num):
        state_r, state_c = _line(rows, n, 0), _line(columns, n, 0)
        mean = 0.0
        for i in range(height):
            mean += state_r[i]
        mean = max(mean / height, eps1)
        for i in range(height):
            x, y = _line(w, n, i), _line(g, n, i)
            factor = real(1 if vector else state_r[i] / mean)
            for j in range(width):
                x[j] = kept * x[j] - rate * y[j] / math.sqrt(max(factor * state_c[j], least))

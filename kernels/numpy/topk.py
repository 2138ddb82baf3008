"""The largest elements of rows, row by row, in a short sorted list of those seen so far.

It knows no meaning of the rows. Rows of a few elements need not be contiguous: they are given by a first element and a
step.
"""

import numpy as np

from castile.kernels.calls import Call
from castile.kernels.form import prepares
from castile.kernels.ids import OutOfRange
from castile.kernels.numpy.copying import onto_zeros
from castile.kernels.numpy.jit import compiled
from castile.kernels.numpy.pointers import after, pointer
from castile.kernels.numpy.views import by_rows, element_strides


@prepares
def top_k(out: tuple[np.ndarray, np.ndarray], x: np.ndarray, *, count: int) -> Call | None:
    """See the definition."""
    values, places = out
    return by_rows(_top_k, [x], count, _step(values), _step(places), bare=[values[..., 0], places[..., 0]])


@prepares
def pick(out: np.ndarray, x: np.ndarray, places: np.ndarray) -> Call | None:
    """See the definition."""
    return by_rows(_pick, [x], out.shape[-1], _step(out), _step(places), bare=[out[..., 0], places[..., 0]])


@prepares
def pick_grad(out: np.ndarray, dy: np.ndarray, places: np.ndarray, *, size: int, accumulate: bool) -> Call | None:
    """See the definition."""
    work = by_rows(_pick_grad, [out], dy.shape[-1], _step(dy), _step(places), bare=[dy[..., 0], places[..., 0]])
    return onto_zeros(work, accumulate, out)


def _step(x: np.ndarray) -> int:
    """Elements from one to the next of a row."""
    return element_strides(x)[-1]


@compiled
def _top_k(rows, cols, x, sx, values, sv, places, sp, count, v_step, p_step):  # type: ignore[no-untyped-def]
    for r in range(rows):
        row, best, where = after(pointer(x), r * sx), after(pointer(values), r * sv), after(pointer(places), r * sp)
        held = 0
        for j in range(cols):
            if held == count and not row[j] > best[(count - 1) * v_step]:
                continue
            n = held if held < count else count - 1
            while n > 0 and row[j] > best[(n - 1) * v_step]:
                best[n * v_step] = best[(n - 1) * v_step]
                where[n * p_step] = where[(n - 1) * p_step]
                n -= 1
            best[n * v_step] = row[j]
            where[n * p_step] = j
            held = min(held + 1, count)


@compiled
def _pick(rows, cols, x, sx, out, so, places, sp, count, o_step, p_step):  # type: ignore[no-untyped-def]
    for r in range(rows):
        row, o, where = after(pointer(x), r * sx), after(pointer(out), r * so), after(pointer(places), r * sp)
        for n in range(count):
            place = where[n * p_step]
            if place < 0 or place >= cols:
                raise OutOfRange("pick: a place lies outside the rows")
            o[n * o_step] = row[place]


@compiled
def _pick_grad(rows, cols, out, so, dy, sd, places, sp, count, d_step, p_step):  # type: ignore[no-untyped-def]
    for r in range(rows):
        row, d, where = after(pointer(out), r * so), after(pointer(dy), r * sd), after(pointer(places), r * sp)
        for n in range(count):
            place = where[n * p_step]
            if place < 0 or place >= cols:
                raise OutOfRange("pick_grad: a place lies outside the rows")
            row[place] += d[n * d_step]
